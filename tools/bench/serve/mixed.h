// One long prompt arrives among answers that stream.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "tools/bench/serve/call.h"
#include "tools/bench/serve/figures.h"
#include "tools/bench/serve/options.h"

namespace weft::bench {

struct MixedFigures {
  int streams = 0;
  int64_t long_tokens = 0;
  Spread calm, during;  // ITL of the streams before the long prompt came and until its first token
  double ttft_alone = 0, ttft_among = 0;  // ms, of the long prompt
  double Ratio() const { return calm.p50 > 0 ? during.p99 / calm.p50 : 0; }
};

// Throws std::runtime_error when a request fails.
MixedFigures RunMixed(v1::Inference::Stub* stub, const v1::ModelInfo& model,
                      const ServeOptions& options);

nlohmann::ordered_json ToJson(const MixedFigures& mixed);
std::string ToText(const MixedFigures& mixed);

}  // namespace weft::bench
