#include "server/api/request_gate.h"

namespace weft::server {

bool RequestGate::Enter(Guest* guest) {
  const std::lock_guard lock(mutex_);
  if (closed_) return false;
  guests_.insert(guest);
  return true;
}

void RequestGate::Leave(Guest* guest) {
  const std::lock_guard lock(mutex_);
  guests_.erase(guest);
  left_.notify_all();
}

void RequestGate::Close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
}

bool RequestGate::closed() const {
  const std::lock_guard lock(mutex_);
  return closed_;
}

int RequestGate::running() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(guests_.size());
}

bool RequestGate::WaitUntilEmpty(std::chrono::milliseconds time) {
  std::unique_lock lock(mutex_);
  return left_.wait_for(lock, time, [this] { return guests_.empty(); });
}

void RequestGate::AbortAll(const grpc::Status& status) {
  const std::lock_guard lock(mutex_);
  for (Guest* guest : guests_) guest->Abort(status);
}

void RequestGate::Abort(const std::string& request_id, const grpc::Status& status) {
  const std::lock_guard lock(mutex_);
  for (Guest* guest : guests_) {
    if (guest->request_id() == request_id) guest->Abort(status);
  }
}

void RequestGate::EndStalled(std::chrono::duration<double> limit) {
  const std::lock_guard lock(mutex_);
  for (Guest* guest : guests_) guest->EndIfStalled(limit);
}

void RequestGate::AbortStreams(uint64_t nonce, const grpc::Status& status) {
  const std::lock_guard lock(mutex_);
  for (Guest* guest : guests_) {
    if (guest->nonce() == nonce) guest->Abort(status);
  }
}

}  // namespace weft::server
