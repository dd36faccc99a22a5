#include "tools/client/prefill_line.h"

#include <spdlog/fmt/fmt.h>

#include <cstdint>

namespace weft::client {

std::string PrefillLine::Text(int done, int total, double seconds) {
  if (first_done_ < 0 || done < last_done_) {
    first_done_ = done;
    first_seconds_ = seconds;
  }
  last_done_ = done;
  if (total <= 0) return "reading the prompt";  // no such thing is told
  std::string text =
      fmt::format("reading the prompt: {} % of {} tokens", int64_t{100} * done / total, total);
  if (done > first_done_ && seconds > first_seconds_) {
    const double speed = (done - first_done_) / (seconds - first_seconds_);
    text += fmt::format(", about {:.0f} s left", (total - done) / speed);
  }
  return text;
}

}  // namespace weft::client
