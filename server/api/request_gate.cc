#include "server/api/request_gate.h"

namespace weft::server {

bool RequestGate::Enter(Guest* guest) {
  const std::lock_guard lock(mutex_);
  if (closed_) return false;
  guests_.emplace(guest, entries_++);
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
  for (const auto& [guest, entry] : guests_) guest->Abort(status);
}

void RequestGate::Abort(const std::string& request_id, const grpc::Status& status) {
  const std::lock_guard lock(mutex_);
  for (const auto& [guest, entry] : guests_) {
    if (guest->request_id() == request_id) guest->Abort(status);
  }
}

void RequestGate::EndStalled(std::chrono::duration<double> limit) {
  const std::lock_guard lock(mutex_);
  for (const auto& [guest, entry] : guests_) guest->EndIfStalled(limit);
}

bool RequestGate::TakeOver(Guest* guest, const grpc::Status& status) {
  const std::lock_guard lock(mutex_);
  const uint64_t nonce = guest->nonce(), own = guests_.at(guest);
  bool latest = true;
  if (nonce == 0) return true;  // of a token that nobody gave out
  for (const auto& [other, entry] : guests_) {
    if (other == guest || other->nonce() != nonce) continue;
    if (entry < own) {
      other->Abort(status);
    } else {
      latest = false;
    }
  }
  return latest;
}

}  // namespace weft::server
