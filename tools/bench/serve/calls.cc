#include "tools/bench/serve/calls.h"

#include <chrono>

namespace weft::bench {

Calls::~Calls() {
  Cancel();
  Finish();
}

std::shared_ptr<Call> Calls::Send(size_t i, const v1::GenerateRequest& request, double due) {
  if (i >= calls_.size()) {
    const std::lock_guard lock(mutex_);
    calls_.resize(i + 1);
    answers_.resize(i + 1);
  }
  std::shared_ptr<Call> call = Call::Start(stub_, request, timeout_, due, [this, i](Answer answer) {
    const std::lock_guard lock(mutex_);
    answers_[i] = std::move(answer);
    ++ended_;
    landed_.notify_all();
  });
  ++sent_;  // now that nothing can throw
  calls_[i] = call;
  return call;
}

bool Calls::Wait(int64_t most, double seconds) {
  std::unique_lock lock(mutex_);
  return landed_.wait_for(lock, std::chrono::duration<double>(seconds),
                          [&] { return sent_ - ended_ < most; });
}

int64_t Calls::ended() {
  const std::lock_guard lock(mutex_);
  return ended_;
}

void Calls::Cancel() {
  for (const auto& weak : calls_) {
    if (const auto call = weak.lock()) call->Cancel();
  }
}

std::vector<Answer> Calls::Finish() {
  std::unique_lock lock(mutex_);
  landed_.wait(lock, [&] { return ended_ == sent_; });
  return std::move(answers_);
}

}  // namespace weft::bench
