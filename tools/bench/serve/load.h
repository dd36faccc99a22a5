// Sends requests, one after the other or when they are due, and gathers the answers.
#pragma once

#include <string>
#include <vector>

#include "tools/bench/serve/call.h"
#include "tools/bench/serve/options.h"

namespace weft::bench {

// So many at once. Answers in the order of the requests; all ended.
std::vector<Answer> RunClosed(v1::Inference::Stub* stub,
                              const std::vector<v1::GenerateRequest>& requests, int concurrency,
                              const ServeOptions& options);

// Each when it is due, `rate` a second on average.
std::vector<Answer> RunOpen(v1::Inference::Stub* stub,
                            const std::vector<v1::GenerateRequest>& requests,
                            const ServeOptions& options);

}  // namespace weft::bench
