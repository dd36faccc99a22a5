// What a run's answers amount to.
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "tools/bench/serve/call.h"

namespace weft::bench {

std::string StatusText(const grpc::Status& status);  // "UNAVAILABLE: why"

struct Spread {
  size_t count = 0;
  double mean = 0, p50 = 0, p90 = 0, p99 = 0, max = 0;
};
// The least value that so many of them do not exceed.
double Quantile(const std::vector<double>& sorted, double q);
Spread SpreadOf(std::vector<double> values);

struct RunFigures {
  std::string load;  // "closed loop, 16 at once"
  double seconds = 0;
  int64_t answered = 0;
  std::map<std::string, int64_t> failures;  // by status
  int64_t prompt_tokens = 0, cached_tokens = 0, output_tokens = 0;
  // Milliseconds.
  Spread ttft, tpot, itl, e2e;
  int64_t replayed = 0;  // of those answered: they went on with another engine
  // Where the server says the time to the first token went, and what is left for the way to it. Not
  // of those replayed.
  Spread queue, prefill, front_end, way;
  bool has_slo = false;
  int64_t good = 0;

  double PerSecond(double count) const { return seconds > 0 ? count / seconds : 0; }
};

// Limits in ms; 0: none.
RunFigures FiguresOf(const std::string& load, const std::vector<Answer>& answers, double slo_ttft,
                     double slo_itl);

nlohmann::ordered_json ToJson(const Spread& spread);
nlohmann::ordered_json ToJson(const RunFigures& run);
std::string ToText(const std::string& name, const Spread& spread);  // one line
std::string ToText(const RunFigures& run);
// A line each, for several runs.
std::string Table(const std::vector<RunFigures>& runs);

}  // namespace weft::bench
