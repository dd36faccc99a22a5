#include "tools/bench/serve/load.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <random>

#include "tools/bench/serve/calls.h"
#include "tools/cli/values.h"

namespace weft::bench {
namespace {

using Requests = std::vector<v1::GenerateRequest>;

// Requests on their way, and how far they are, on stderr.
class Flight {
 public:
  Flight(v1::Inference::Stub* stub, const Requests& requests, const ServeOptions& options)
      : requests_(requests), options_(options), calls_(stub, requests.size(), options.timeout) {}

  void Send(size_t i, double due) { calls_.Send(i, requests_[i], due); }

  // Waits until fewer than `most` are on their way, or until `time`.
  void WaitUntil(int64_t most, double time) {
    while (true) {
      const double left = time - Now();
      if (left <= 0 || calls_.Wait(most, std::min(left, 0.5))) return;
      Progress();
    }
  }

  std::vector<Answer> Finish() {
    WaitUntil(1, INFINITY);
    if (told_) std::cerr << "\r\x1b[K";
    return calls_.Finish();
  }

 private:
  void Progress() {
    if (options_.quiet || Now() - last_told_ < 0.5) return;
    const bool terminal = isatty(STDERR_FILENO) != 0;
    if (!terminal && Now() - last_told_ < 10) return;
    last_told_ = Now();
    std::cerr << (terminal ? "\r" : "")
              << cli::Format("%lld of %zu requests ended, %lld on their way",
                             static_cast<long long>(calls_.ended()), requests_.size(),
                             static_cast<long long>(calls_.flying()))
              << (terminal ? "\x1b[K" : "\n") << std::flush;
    told_ = told_ || terminal;
  }

  const Requests& requests_;
  const ServeOptions& options_;
  Calls calls_;
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
