#include "tools/bench/serve/mixed.h"

#include <algorithm>
#include <chrono>
#include <iostream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <thread>

#include "tools/bench/serve/calls.h"
#include "tools/bench/serve/requests.h"
#include "tools/cli/values.h"

namespace weft::bench {
namespace {

void Sleep(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

void Tell(const ServeOptions& options, const std::string& sentence) {
  if (!options.quiet) std::cerr << sentence << std::endl;
}

// Answers that stream until they are cancelled.
class Streams {
 public:
  Streams(v1::Inference::Stub* stub, const v1::ModelInfo& model, const ServeOptions& options)
      : calls_(stub, static_cast<size_t>(options.concurrency.front()), options.timeout) {
    const int64_t output = model.max_context() - options.prompt_tokens.high;
    for (size_t i = 0; i < static_cast<size_t>(options.concurrency.front()); ++i) {
      streams_.push_back(calls_.Send(
          i, RandomRequest(options, model, options.prompt_tokens.high, output, options.seed + i)));
    }
  }

  // Until every one has so many tokens. False: one has ended, or not within so many seconds.
  bool Wait(int64_t tokens, double seconds) {
    const double end = Now() + seconds;
    const auto has = [&](const auto& call) { return call->tokens() >= tokens; };
    const auto ended = [](const auto& call) { return call->ended(); };
    while (!std::all_of(streams_.begin(), streams_.end(), has)) {
      if (Now() > end || std::any_of(streams_.begin(), streams_.end(), ended)) return false;
      Sleep(0.005);
    }
    return true;
  }

  // When each one's messages came. Throws when one has ended by itself.
  std::vector<Answer> End() {
    std::vector<bool> early;
    for (const auto& call : streams_) early.push_back(call->ended());
    calls_.Cancel();
    std::vector<Answer> answers = calls_.Finish();
    for (size_t i = 0; i < answers.size(); ++i) {
      const grpc::Status& status = answers[i].status;
      if (!early[i] && status.error_code() == grpc::StatusCode::CANCELLED) continue;
      throw std::runtime_error(cli::Format("stream %zu of %zu ended early, after %zu tokens: ",
                                           i + 1, answers.size(), answers[i].ids.size()) +
                               StatusText(status));
    }
    return answers;
  }

 private:
  Calls calls_;
  std::vector<std::shared_ptr<Call>> streams_;
};

double Ttft(const Answer& answer, const std::string& which) {
  if (answer.ok() && !answer.at.empty()) return 1e3 * answer.ttft();
  throw std::runtime_error("the long prompt " + which + ": " + StatusText(answer.status));
}

}  // namespace

MixedFigures RunMixed(v1::Inference::Stub* stub, const v1::ModelInfo& model,
                      const ServeOptions& options) {
  MixedFigures mixed;
  mixed.streams = options.concurrency.front();
  mixed.long_tokens = options.long_tokens;
  v1::GenerateRequest prompt =
      RandomRequest(options, model, options.long_tokens, 1, options.seed + 1000000);
  const auto salted = [&](const char* salt) {  // so that the second is not found in the cache
    prompt.set_cache_salt(Salt(salt));
    return prompt;
  };
  Tell(options, "the long prompt alone");
  mixed.ttft_alone = Ttft(Ask(stub, salted("alone"), options.timeout), "alone");

  Tell(options, cli::Format("%d streams alone for %.0f s", mixed.streams, options.calm));
  Streams streams(stub, model, options);
  const bool started = streams.Wait(8, options.timeout);
  const double begin = Now();
  if (started) Sleep(options.calm);
  const double calm_end = Now();
  Tell(options, "the long prompt among them");
  const Answer among = started ? Ask(stub, salted("among"), options.timeout) : Answer{};
  const double read = among.at.empty() ? calm_end : among.at.front();
  std::vector<double> calm, during;
  for (const Answer& stream : streams.End()) {
    for (size_t i = 1; i < stream.at.size(); ++i) {
      const double at = stream.at[i], gap = 1e3 * (at - stream.at[i - 1]);
      if (begin < stream.at[i - 1] && at <= calm_end) calm.push_back(gap);
      if (calm_end < at && stream.at[i - 1] <= read) during.push_back(gap);
    }
  }
  if (!started) throw std::runtime_error("the streams did not begin within --timeout");
  mixed.ttft_among = Ttft(among, "among the streams");
  mixed.calm = SpreadOf(std::move(calm));
  mixed.during = SpreadOf(std::move(during));
  return mixed;
}

nlohmann::ordered_json ToJson(const MixedFigures& mixed) {
  return {{"streams", mixed.streams},
          {"long_tokens", mixed.long_tokens},
          {"itl_calm_ms", ToJson(mixed.calm)},
          {"itl_during_ms", ToJson(mixed.during)},
          {"p99_during_over_p50_calm", mixed.Ratio()},
          {"long_ttft_alone_ms", mixed.ttft_alone},
          {"long_ttft_among_ms", mixed.ttft_among}};
}

std::string ToText(const MixedFigures& mixed) {
  return cli::Format("%d streams, and a prompt of %lld tokens\n  %-24s %9s %9s %9s %9s %9s\n",
                     mixed.streams, static_cast<long long>(mixed.long_tokens), "ms", "mean", "p50",
                     "p90", "p99", "max") +
         ToText("ITL undisturbed", mixed.calm) + ToText("ITL while it is read", mixed.during) +
         cli::Format(
             "  p99 meanwhile over p50 undisturbed: %.2f\n"
             "  TTFT of the long prompt: %.0f ms alone, %.0f among the streams (%.2f times)\n",
             mixed.Ratio(), mixed.ttft_alone, mixed.ttft_among,
             mixed.ttft_among / mixed.ttft_alone);
}

}  // namespace weft::bench
