// The part of resolve.h that is about sampling.
#pragma once

#include "server/api/resolve.h"

namespace weft::server {

inline constexpr uint32_t kMostAlternatives = 20;  // beside a log-probability

// Fills in sampling, lengths, stops, seed and choices; `out` holds the prompt. `scoring`: the
// request asks for scores, and may do without output.
grpc::Status ResolveSampling(const v1::Sampling& sampling, const text::TextModel& model,
                             const Limits& limits, bool scoring, Resolved* out);

uint64_t DrawSeed();

}  // namespace weft::server
