#include "tools/chat/report.h"

#include <spdlog/fmt/fmt.h>

#include <nlohmann/json.hpp>

#include "tools/client/went_on.h"

namespace weft::chat {
namespace {

using client::WentOn;
using nlohmann::ordered_json;

// Without any token, until the end.
double FirstToken(const Outcome& outcome) {
  return outcome.first_token_seconds.value_or(outcome.seconds);
}

// The first token is prefill's work; 0 when no second one tells a rate.
double DecodeRate(const Outcome& outcome) {
  const v1::Complete& complete = outcome.complete;
  const int more = complete.usage().output_tokens() - 1;
  const double seconds = WentOn(complete) ? outcome.seconds - FirstToken(outcome)
                                          : complete.timings().decode_seconds();
  return more > 0 && seconds > 0 ? more / seconds : 0;
}

// 0 where none is known.
double PrefillRate(const v1::Complete& complete) {
  const int tokens = complete.usage().prompt_tokens() - complete.usage().cached_tokens();
  const double seconds = complete.timings().prefill_seconds();
  return seconds > 0 && !WentOn(complete) ? tokens / seconds : 0;
}

std::string FiguresText(const char* part, const v1::SelectionFigures& f) {
  std::string text =
      fmt::format("{}: attention read {:.1f} tokens per query and layer", part, f.mean_union());
  const char* when = f.second_rounds() > 0 ? " at first" : "";
  if (f.has_pairs_covered() && f.pairs() > 0) {
    text += fmt::format(
        "; all of the exact top-K was among them{} in {} of {} query-layer pairs "
        "({:.2f} %)",
        when, f.pairs_covered(), f.pairs(),
        100.0 * static_cast<double>(f.pairs_covered()) / static_cast<double>(f.pairs()));
  }
  if (f.has_queries_covered() && f.queries() > 0) {
    text +=
        fmt::format(", and in every layer for {} of {} tokens", f.queries_covered(), f.queries());
  }
  if (f.second_rounds() > 0) {
    text += fmt::format("; {} second rounds brought in the rest", f.second_rounds());
  }
  if (f.has_mean_union_planned()) {
    text += fmt::format("; {:.1f} without --margin auto", f.mean_union_planned());
  }
  return text + fmt::format("; rank imbalance {:.2f}\n", f.mean_imbalance());
}

ordered_json FiguresJson(const v1::SelectionFigures& f) {
  ordered_json json = {{"pairs", f.pairs()}, {"queries", f.queries()}};
  if (f.has_pairs_covered()) json["pairs_covered"] = f.pairs_covered();
  if (f.has_queries_covered()) json["queries_covered"] = f.queries_covered();
  json["mean_union"] = f.mean_union();
  json["mean_imbalance"] = f.mean_imbalance();
  json["second_rounds"] = f.second_rounds();
  if (f.has_mean_union_planned()) json["mean_union_planned"] = f.mean_union_planned();
  return json;
}

}  // namespace

std::string StatsText(const Outcome& outcome) {
  const v1::Complete& c = outcome.complete;
  const v1::SelectionReport& s = c.selection();
  const double rate = DecodeRate(outcome);
  std::string text = fmt::format("prompt: {} tokens ({} cached){}; first token after {:.3f} s\n",
                                 c.usage().prompt_tokens(), c.usage().cached_tokens(),
                                 WentOn(c) ? "" : fmt::format(", {:.1f} tokens/s", PrefillRate(c)),
                                 FirstToken(outcome));
  text += fmt::format(
      "answer: {} tokens, {:.1f} tokens/s, {:.1f} ms each; {:.3f} s in all; ended by {}; seed {}\n",
      c.usage().output_tokens(), rate, rate > 0 ? 1e3 / rate : 0.0, outcome.seconds,
      c.finish_reason(), c.seed());
  if (c.replays() > 0) text += fmt::format("went on after the loss of {} engines\n", c.replays());
  if (c.resumes() > 0) text += fmt::format("went on after the loss of {} servers\n", c.resumes());
  text += s.mode() == "dense"
              ? fmt::format("selection: dense, G={} ranks\n", s.ranks())  // K and m mean nothing
              : fmt::format("selection: {}, K={}, m={} on each of G={} ranks\n", s.mode(),
                            s.index_topk(), s.m(), s.ranks());
  if (s.has_layer_m()) {
    text += fmt::format("margin auto: m from {} to {} by layer, {:.1f} on average\n",
                        s.layer_m().least(), s.layer_m().greatest(), s.layer_m().mean());
  }
  if (s.has_prefill()) text += FiguresText("prefill", s.prefill());
  if (s.has_decode()) text += FiguresText("decode", s.decode());
  if (!s.has_prefill() && !s.has_decode()) {
    text += s.mode() == "dense" ? "every token was read\n"
                                : "nothing was cut: every query saw at most K tokens\n";
  }
  return text;
}

std::string StatsJson(const Outcome& outcome) {
  const v1::Complete& c = outcome.complete;
  const v1::SelectionReport& s = c.selection();
  ordered_json json = {{"answer", outcome.answer}};
  if (!outcome.reasoning.empty()) json["reasoning"] = outcome.reasoning;
  if (!outcome.ok) {
    json["error"] = outcome.interrupted ? "interrupted" : outcome.error;
  } else {
    json["request_id"] = c.request_id();
    json["finish_reason"] = c.finish_reason();
    json["seed"] = c.seed();
    json["replays"] = c.replays();
    json["resumes"] = c.resumes();
    json["prompt_tokens"] = c.usage().prompt_tokens();
    json["cached_tokens"] = c.usage().cached_tokens();
    json["output_tokens"] = c.usage().output_tokens();
    json["first_token_seconds"] = FirstToken(outcome);
    json["queue_seconds"] = c.timings().queue_seconds();
    json["prefill_seconds"] = c.timings().prefill_seconds();
    json["decode_seconds"] = c.timings().decode_seconds();
    json["total_seconds"] = outcome.seconds;
    json["prefill_tokens_per_second"] = PrefillRate(c);
    json["decode_tokens_per_second"] = DecodeRate(outcome);
    json["selection"] = {
        {"mode", s.mode()}, {"index_topk", s.index_topk()}, {"m", s.m()}, {"ranks", s.ranks()}};
    if (s.has_layer_m()) {
      json["selection"]["layer_m"] = {{"mean", s.layer_m().mean()},
                                      {"least", s.layer_m().least()},
                                      {"greatest", s.layer_m().greatest()}};
    }
    if (s.has_prefill()) json["selection"]["prefill"] = FiguresJson(s.prefill());
    if (s.has_decode()) json["selection"]["decode"] = FiguresJson(s.decode());
  }
  return json.dump(-1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace weft::chat
