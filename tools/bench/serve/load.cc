#include "tools/bench/serve/load.h"

#include <unistd.h>

#include <chrono>
#include <cmath>
#include <condition_variable>
#include <iostream>
#include <mutex>
#include <random>

#include "tools/cli/values.h"

namespace weft::bench {
namespace {

using Requests = std::vector<v1::GenerateRequest>;

// Requests on their way. Its destructor waits for them.
class Flight {
 public:
  Flight(v1::Inference::Stub* stub, const Requests& requests, const ServeOptions& options)
      : stub_(stub), requests_(requests), options_(options), answers_(requests.size()) {}

  void Send(size_t i, double due) {
    {
      const std::lock_guard lock(mutex_);
      ++flying_;
    }
    Call::Start(stub_, requests_[i], options_.timeout, due, [this, i](Answer answer) {
      const std::lock_guard lock(mutex_);
      answers_[i] = std::move(answer);
      --flying_;
      ++ended_;
      landed_.notify_all();
    });
  }

  // Waits until fewer than `most` are on their way, or until `time`.
  void WaitUntil(int64_t most, double time) {
    std::unique_lock lock(mutex_);
    while (flying_ >= most) {
      const double left = time - Now();
      if (left <= 0) return;
      landed_.wait_for(lock, std::chrono::duration<double>(std::min(left, 0.5)));
      Progress();
    }
  }

  std::vector<Answer> Finish() {
    WaitUntil(1, INFINITY);
    if (told_) std::cerr << "\r\x1b[K";
    return std::move(answers_);
  }

 private:
  void Progress() {
    if (options_.quiet || Now() - last_told_ < 0.5) return;
    const bool terminal = isatty(STDERR_FILENO) != 0;
    if (!terminal && Now() - last_told_ < 10) return;
    last_told_ = Now();
    std::cerr << (terminal ? "\r" : "")
              << cli::Format("%lld of %zu requests ended, %lld on their way",
                             static_cast<long long>(ended_), requests_.size(),
                             static_cast<long long>(flying_))
              << (terminal ? "\x1b[K" : "\n") << std::flush;
    told_ = told_ || terminal;
  }

  v1::Inference::Stub* stub_;
  const Requests& requests_;
  const ServeOptions& options_;
  std::mutex mutex_;
  std::condition_variable landed_;
  std::vector<Answer> answers_;
  int64_t flying_ = 0, ended_ = 0;
  double last_told_ = Now();
  bool told_ = false;
};

}  // namespace

std::vector<Answer> RunClosed(v1::Inference::Stub* stub, const Requests& requests, int concurrency,
                              const ServeOptions& options) {
  Flight flight(stub, requests, options);
  for (size_t i = 0; i < requests.size(); ++i) {
    flight.WaitUntil(concurrency, INFINITY);
    flight.Send(i, 0);
  }
  return flight.Finish();
}

std::vector<Answer> RunOpen(v1::Inference::Stub* stub, const Requests& requests,
                            const ServeOptions& options) {
  Flight flight(stub, requests, options);
  std::mt19937_64 random(options.seed);
  double due = Now();
  for (size_t i = 0; i < requests.size(); ++i) {
    flight.WaitUntil(0, due);
    flight.Send(i, due);
    // Uniform in (0, 1] by hand: the same on every machine.
    due -= std::log((static_cast<double>(random() >> 11) + 1) * 0x1p-53) / options.rate;
  }
  return flight.Finish();
}

}  // namespace weft::bench
