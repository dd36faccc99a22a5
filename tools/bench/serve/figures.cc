#include "tools/bench/serve/figures.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "tools/cli/values.h"
#include "tools/client/went_on.h"

namespace weft::bench {
namespace {

using cli::Format;
using client::WentOn;
using nlohmann::ordered_json;

const char* CodeName(grpc::StatusCode code) {
  static constexpr const char* kNames[] = {"OK",
                                           "CANCELLED",
                                           "UNKNOWN",
                                           "INVALID_ARGUMENT",
                                           "DEADLINE_EXCEEDED",
                                           "NOT_FOUND",
                                           "ALREADY_EXISTS",
                                           "PERMISSION_DENIED",
                                           "RESOURCE_EXHAUSTED",
                                           "FAILED_PRECONDITION",
                                           "ABORTED",
                                           "OUT_OF_RANGE",
                                           "UNIMPLEMENTED",
                                           "INTERNAL",
                                           "UNAVAILABLE",
                                           "DATA_LOSS",
                                           "UNAUTHENTICATED"};
  return code >= 0 && code <= 16 ? kNames[code] : "OTHER";
}

// Values of all answers of a run, in ms.
struct Values {
  std::vector<double> ttft, tpot, itl, e2e, queue, prefill, front_end, way;
};

void Take(const Answer& answer, Values* values) {
  values->e2e.push_back(1e3 * (answer.end - answer.due));
  if (answer.at.empty()) return;
  const double ttft = 1e3 * answer.ttft();
  values->ttft.push_back(ttft);
  for (double gap : answer.Gaps()) values->itl.push_back(1e3 * gap);
  if (answer.ids.size() > 1) {
    values->tpot.push_back(1e3 * (answer.at.back() - answer.at.front()) /
                           static_cast<double>(answer.ids.size() - 1));
  }
  if (WentOn(answer.complete)) return;  // the engine's times are no parts of this TTFT
  const v1::Timings& timings = answer.complete.timings();
  const double queue = 1e3 * timings.queue_seconds();
  const double prefill = 1e3 * timings.prefill_seconds();
  const double first = 1e3 * timings.first_token_seconds();
  values->queue.push_back(queue);
  values->prefill.push_back(prefill);
  values->front_end.push_back(first - queue - prefill);
  values->way.push_back(ttft - first);
}

bool IsGood(const Answer& answer, double slo_ttft, double slo_itl) {
  if (answer.at.empty()) return false;
  if (slo_ttft > 0 && 1e3 * answer.ttft() > slo_ttft) return false;
  std::vector<double> gaps = answer.Gaps();
  if (slo_itl <= 0 || gaps.empty()) return true;
  std::sort(gaps.begin(), gaps.end());
  return 1e3 * Quantile(gaps, 0.99) <= slo_itl;
}

}  // namespace

std::string StatusText(const grpc::Status& status) {
  const std::string name = CodeName(status.error_code());
  return status.error_message().empty() ? name : name + ": " + status.error_message();
}

double Quantile(const std::vector<double>& sorted, double q) {
  const double rank = std::ceil(q * static_cast<double>(sorted.size()));
  return sorted.at(static_cast<size_t>(std::max(1.0, rank)) - 1);
}

Spread SpreadOf(std::vector<double> values) {
  Spread spread;
  spread.count = values.size();
  if (values.empty()) return spread;
  std::sort(values.begin(), values.end());
  spread.mean =
      std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  spread.p50 = Quantile(values, 0.5);
  spread.p90 = Quantile(values, 0.9);
  spread.p99 = Quantile(values, 0.99);
  spread.max = values.back();
  return spread;
}

RunFigures FiguresOf(const std::string& load, const std::vector<Answer>& answers, double slo_ttft,
                     double slo_itl) {
  RunFigures run;
  run.load = load;
  run.has_slo = slo_ttft > 0 || slo_itl > 0;
  Values values;
  double begin = INFINITY, end = -INFINITY;
  for (const Answer& answer : answers) {
    begin = std::min(begin, answer.due);
    end = std::max(end, answer.end);
    if (!answer.ok()) {
      ++run.failures[CodeName(answer.status.error_code())];
      continue;
    }
    ++run.answered;
    run.prompt_tokens += answer.complete.usage().prompt_tokens();
    run.cached_tokens += answer.complete.usage().cached_tokens();
    run.output_tokens += answer.complete.usage().output_tokens();
    run.good += IsGood(answer, slo_ttft, slo_itl);
    run.replayed += WentOn(answer.complete);
    Take(answer, &values);
  }
  if (!answers.empty()) run.seconds = end - begin;
  run.ttft = SpreadOf(values.ttft);
  run.tpot = SpreadOf(values.tpot);
  run.itl = SpreadOf(values.itl);
  run.e2e = SpreadOf(values.e2e);
  run.queue = SpreadOf(values.queue);
  run.prefill = SpreadOf(values.prefill);
  run.front_end = SpreadOf(values.front_end);
  run.way = SpreadOf(values.way);
  return run;
}

ordered_json ToJson(const Spread& s) {
  return {{"count", s.count}, {"mean", s.mean}, {"p50", s.p50},
          {"p90", s.p90},     {"p99", s.p99},   {"max", s.max}};
}

ordered_json ToJson(const RunFigures& run) {
  ordered_json json = {
      {"load", run.load},
      {"seconds", run.seconds},
      {"answered", run.answered},
      {"replayed", run.replayed},
      {"failures", run.failures},
      {"prompt_tokens", run.prompt_tokens},
      {"cached_tokens", run.cached_tokens},
      {"output_tokens", run.output_tokens},
      {"requests_per_second", run.PerSecond(static_cast<double>(run.answered))},
      {"output_tokens_per_second", run.PerSecond(static_cast<double>(run.output_tokens))},
      {"ttft_ms", ToJson(run.ttft)},
      {"tpot_ms", ToJson(run.tpot)},
      {"itl_ms", ToJson(run.itl)},
      {"e2e_ms", ToJson(run.e2e)},
      {"server_ms",
       {{"queue", ToJson(run.queue)},
        {"prefill", ToJson(run.prefill)},
        {"front_end", ToJson(run.front_end)}}},
      {"way_ms", ToJson(run.way)}};
  if (run.has_slo) {
    json["good"] = run.good;
    json["goodput_per_second"] = run.PerSecond(static_cast<double>(run.good));
  }
  return json;
}

std::string ToText(const std::string& name, const Spread& s) {
  return Format("  %-24s %9.1f %9.1f %9.1f %9.1f %9.1f\n", name.c_str(), s.mean, s.p50, s.p90,
                s.p99, s.max);
}

std::string ToText(const RunFigures& run) {
  std::string text = Format(
      "%s: %lld answered in %.1f s, %.2f requests and %.1f output tokens a second; %lld prompt "
      "tokens, %lld of them cached\n",
      run.load.c_str(), static_cast<long long>(run.answered), run.seconds,
      run.PerSecond(static_cast<double>(run.answered)),
      run.PerSecond(static_cast<double>(run.output_tokens)),
      static_cast<long long>(run.prompt_tokens), static_cast<long long>(run.cached_tokens));
  for (const auto& [status, count] : run.failures) {
    text += Format("  failed with %s: %lld\n", status.c_str(), static_cast<long long>(count));
  }
  if (run.answered == 0) return text;
  text += Format("  %-24s %9s %9s %9s %9s %9s\n", "ms", "mean", "p50", "p90", "p99", "max");
  text += ToText("TTFT", run.ttft);
  if (run.queue.count > 0) {
    text += ToText("  in the engine's queue", run.queue) + ToText("  prefill", run.prefill) +
            ToText("  the front end", run.front_end) + ToText("  the way here", run.way);
  }
  text += ToText("TPOT", run.tpot) + ToText("ITL", run.itl) + ToText("E2E", run.e2e);
  if (run.replayed > 0) {
    text += Format("  %lld requests went on after a loss: not in the parts of TTFT\n",
                   static_cast<long long>(run.replayed));
  }
  if (run.has_slo) {
    text += Format("  goodput: %lld of %lld requests within the limits, %.2f a second\n",
                   static_cast<long long>(run.good), static_cast<long long>(run.answered),
                   run.PerSecond(static_cast<double>(run.good)));
  }
  return text;
}

std::string Table(const std::vector<RunFigures>& runs) {
  std::string text = Format("%-28s %10s %10s %10s %10s %10s\n", "", "tokens/s", "TTFT p50",
                            "TTFT p99", "ITL p50", "ITL p99");
  for (const RunFigures& run : runs) {
    text += Format("%-28s %10.1f %10.1f %10.1f %10.1f %10.1f\n", run.load.c_str(),
                   run.PerSecond(static_cast<double>(run.output_tokens)), run.ttft.p50,
                   run.ttft.p99, run.itl.p50, run.itl.p99);
  }
  return text;
}

}  // namespace weft::bench
