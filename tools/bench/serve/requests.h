// What is asked: prompts of random tokens, or those of a file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/bench/serve/options.h"
#include "weft/v1/inference.pb.h"

namespace weft::bench {

// `count` requests, the same for the same options and model. Throws std::runtime_error that names
// the line of a file, or a length that the model cannot take.
std::vector<v1::GenerateRequest> MakeRequests(const ServeOptions& options,
                                              const v1::ModelInfo& model, int64_t count);

// One with a prompt of so many random tokens.
v1::GenerateRequest RandomRequest(const ServeOptions& options, const v1::ModelInfo& model,
                                  int64_t prompt_tokens, int64_t output_tokens, uint64_t seed);

// A cache_salt that no other run of this program uses: what one run asked must not be in the cache
// when another asks the same.
std::string Salt(const std::string& part);

}  // namespace weft::bench
