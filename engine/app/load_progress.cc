#include "engine/app/load_progress.h"

#include <cstdio>

#include "engine/app/memory_plan.h"

namespace weft {
namespace {

constexpr double kInterval = 5;  // seconds between lines

std::string Seconds(double seconds) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f s", seconds);
  return text;
}

}  // namespace

LoadProgress MakeLoadProgress(std::function<double()> now,
                              std::function<void(const std::string&)> say) {
  const double begin = now();
  return [=, told = begin](int64_t done, int64_t total) mutable {
    const double at = now();
    if (done == total) {
      return say("weights: " + BytesText(total) + " loaded in " + Seconds(at - begin));
    }
    if (at - told < kInterval) return;
    told = at;
    say("weights: " + BytesText(done) + " of " + BytesText(total) + " after " +
        Seconds(at - begin));
  };
}

}  // namespace weft
