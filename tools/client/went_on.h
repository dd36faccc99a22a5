// Whether a stream was lost on its way and went on.
#pragma once

#include "weft/v1/inference.pb.h"

namespace weft::client {

// The engine's times are then those of the last one, whose prefill read earlier output too.
inline bool WentOn(const v1::Complete& complete) {
  return complete.replays() > 0 || complete.resumes() > 0;
}

}  // namespace weft::client
