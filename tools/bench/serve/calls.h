// Many requests on their way, and their answers.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "tools/bench/serve/call.h"

namespace weft::bench {

// Used by one thread. Its destructor cancels what is on its way and waits for it, so that no
// callback outlives what it writes to, and the stub's owner lets go of the channel last.
class Calls {
 public:
  Calls(v1::Inference::Stub* stub, size_t count, double timeout)
      : stub_(stub), timeout_(timeout), calls_(count), answers_(count) {}
  ~Calls();
  Calls(const Calls&) = delete;
  Calls& operator=(const Calls&) = delete;

  // `due`: 0 for now. More than `count` have room too.
  std::shared_ptr<Call> Send(size_t i, const v1::GenerateRequest& request, double due = 0);

  // Waits until fewer than `most` are on their way. False: not within so many seconds.
  bool Wait(int64_t most, double seconds);
  int64_t ended();
  int64_t flying() { return sent_ - ended(); }

  void Cancel();
  std::vector<Answer> Finish();  // waits for all; in the order of `i`

 private:
  v1::Inference::Stub* stub_;
  const double timeout_;
  std::vector<std::weak_ptr<Call>> calls_;  // ended ones do not keep their memory
  int64_t sent_ = 0;
  std::mutex mutex_;
  std::condition_variable landed_;
  std::vector<Answer> answers_;
  int64_t ended_ = 0;
};

}  // namespace weft::bench
