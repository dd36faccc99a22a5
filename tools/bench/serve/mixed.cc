#include "tools/bench/serve/mixed.h"

#include <algorithm>
#include <chrono>
#include <functional>
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

// Answers that stream side by side until they are cancelled. Where one ends the same request goes
// out again, so that contexts are as long at the end as at the beginning; the first ones are of
// different lengths, so that they do not all end at once.
class Streams {
 public:
  Streams(v1::Inference::Stub* stub, const v1::ModelInfo& model, const ServeOptions& options)
      : calls_(stub, static_cast<size_t>(options.concurrency.front()), options.timeout) {
    const auto n = static_cast<size_t>(options.concurrency.front());
    for (size_t i = 0; i < n; ++i) {
      requests_.push_back(RandomRequest(options, model, options.prompt_tokens.high,
                                        options.stream_tokens, options.seed + i));
      const auto part = options.stream_tokens * static_cast<int64_t>(i + 1);
      Send(i, std::max<int64_t>(1, part / static_cast<int64_t>(n)));
    }
  }

  // Keeps them going until done() holds. False: one ended early, or it took so many seconds.
  bool Keep(double seconds, const std::function<bool()>& done) {
    const double end = Now() + seconds;
    while (!done()) {
      for (size_t i = 0; i < live_.size(); ++i) {
        const Live& live = live_[i];
        if (!live.call->ended()) continue;
        if (live.call->tokens() < live.tokens) return false;
        Send(i, requests_[i].sampling().max_tokens());
      }
      if (Now() > end) return false;
      Sleep(0.002);
    }
    return true;
  }
  // So many tokens of every one.
  bool Started(int64_t tokens) const {
    return std::all_of(live_.begin(), live_.end(), [&](const Live& live) {
      return live.again || live.call->tokens() >= std::min(tokens, live.tokens);
    });
  }

  // When the messages of each answer came. Throws when one has ended by itself before its time.
  std::vector<Answer> End() {
    calls_.Cancel();
    std::vector<Answer> answers = calls_.Finish();
    for (size_t i = 0; i < answers.size(); ++i) {
      const grpc::Status& status = answers[i].status;
      if (status.ok() || status.error_code() == grpc::StatusCode::CANCELLED) continue;
      throw std::runtime_error(cli::Format("stream %zu of %zu ended early, after %zu tokens: ",
                                           slot_[i] + 1, live_.size(), answers[i].ids.size()) +
                               StatusText(status));
    }
    return answers;
  }

 private:
  struct Live {
    std::shared_ptr<Call> call;
    int64_t tokens = 0;  // that it will have
    bool again = false;  // not the first of its stream
  };

  void Send(size_t i, int64_t tokens) {
    v1::GenerateRequest request = requests_[i];
    request.mutable_sampling()->set_max_tokens(static_cast<uint32_t>(tokens));
    const bool again = i < live_.size();
    if (!again) live_.emplace_back();
    live_[i] = {calls_.Send(slot_.size(), request), tokens, again};
    slot_.push_back(i);
  }

  Calls calls_;
  std::vector<v1::GenerateRequest> requests_;  // of each stream
  std::vector<Live> live_;
  std::vector<size_t> slot_;  // of each call, its stream
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
  const bool started = streams.Keep(options.timeout, [&] { return streams.Started(8); });
  const double begin = Now();
  bool well = started && streams.Keep(1e9, [&] { return Now() > begin + options.calm; });
  const double calm_end = Now();
  Tell(options, "the long prompt among them");
  Answer among;
  if (well) {
    Calls prompts(stub, 1, options.timeout);
    const std::shared_ptr<Call> call = prompts.Send(0, salted("among"));
    well = streams.Keep(1e9, [&] { return call->ended(); });
    if (!well) prompts.Cancel();
    among = prompts.Finish().front();
  }
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
  if (!well) throw std::runtime_error("a stream ended before it had all its tokens");
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
