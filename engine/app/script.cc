#include "engine/app/script.h"

#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "engine/app/script_request.h"

namespace weft {
namespace {

using nlohmann::json;

json FiguresOf(const SelectionFigures& figures) {
  if (figures.pairs == 0) return nullptr;
  json out = {{"pairs", figures.pairs},
              {"queries", figures.queries},
              {"mean_union", figures.union_sum / static_cast<double>(figures.pairs)},
              {"mean_imbalance", figures.imbalance_sum / static_cast<double>(figures.pairs)}};
  if (figures.has_coverage) {
    out["pairs_covered"] = figures.pairs_covered;
    out["queries_covered"] = figures.queries_covered;
    out["second_rounds"] = figures.second_rounds;
  }
  if (figures.planned_union_sum > 0) {
    out["mean_union_planned"] = figures.planned_union_sum / static_cast<double>(figures.pairs);
  }
  if (figures.audited > 0) {
    out["audited"] = figures.audited;
    out["audit_wrong"] = figures.audit_wrong;
    out["audit_recall"] = figures.audit_recall_sum / static_cast<double>(figures.audited);
  }
  return out;
}

// One object for each of `places` places.
void AppendTop(const TopTokens& top, size_t places, json* list) {
  const size_t each = top.ids.size() / places;
  for (size_t i = 0; i < top.ids.size(); ++i) {
    if (i % each == 0) list->push_back({{"ids", json::array()}, {"logprobs", json::array()}});
    list->back()["ids"].push_back(top.ids[i]);
    list->back()["logprobs"].push_back(top.logprobs[i]);
  }
}

void Record(const EngineEvent& event, json* result) {
  if (const auto* token = std::get_if<TokenEvent>(&event)) {
    (*result)["output_ids"].push_back(token->id);
    if (!token->score) return;
    (*result)["output_logprobs"].push_back(token->score->logprob);
    AppendTop(token->score->top, 1, &(*result)["output_top"]);
  } else if (const auto* scores = std::get_if<ScoresEvent>(&event)) {
    for (float value : scores->logprobs) (*result)["logprobs"].push_back(value);
    for (int32_t id : scores->argmax) (*result)["argmax"].push_back(id);
    AppendTop(scores->top, scores->logprobs.size(), &(*result)["top"]);
  } else if (const auto* selected = std::get_if<SelectedEvent>(&event)) {
    json list = {{"output", selected->output_index}, {"layer", selected->layer}};
    if (selected->all) {
      list["all"] = true;
    } else {
      list["positions"] = selected->positions;
    }
    (*result)["selected"].push_back(std::move(list));
  } else if (const auto* failed = std::get_if<FailedEvent>(&event)) {
    (*result)["error"] = failed->status.message;
  } else if (const auto* done = std::get_if<FinishedEvent>(&event)) {
    (*result)["finish_reason"] = done->reason == FinishReason::kStop ? "stop" : "length";
    (*result)["cached_tokens"] = done->cached_tokens;
    (*result)["prefill_seconds"] = done->prefill_seconds;
    (*result)["decode_seconds"] = done->decode_seconds;
    (*result)["prefill"] = FiguresOf(done->prefill);
    (*result)["decode"] = FiguresOf(done->decode);
  }
}

void Submit(Engine* engine, const std::string& text, size_t number, json* result, size_t* left) {
  Status status;
  try {
    SelectionWish wish;
    EngineRequest request = ParseScriptRequest(text, &wish);
    status = engine->ResolveSelection(wish, &request.selection);
    if (!request.selection.layer_m.empty()) (*result)["layer_m"] = request.selection.layer_m;
    int64_t id;
    if (status.ok()) {
      status = engine->Submit(
          std::move(request),
          [result, left](EngineEvent event) {
            Record(event, result);
            if (std::holds_alternative<FinishedEvent>(event) ||
                std::holds_alternative<FailedEvent>(event)) {
              --*left;
            }
          },
          &id);
    }
  } catch (const std::exception& error) {
    status = Status::Invalid(error.what());
  }
  if (!status.ok()) {
    throw std::runtime_error("line " + std::to_string(number) + ": " + status.message);
  }
}

}  // namespace

void RunScript(Engine* engine, const std::string& path, const Watch& watch) {
  std::ifstream file;
  if (path != "-") file.open(path);
  std::istream& in = path == "-" ? std::cin : file;
  if (!in) throw std::runtime_error("--script: cannot open " + path);
  std::vector<std::pair<size_t, std::string>> lines;  // with their numbers in the file
  size_t number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    if (!line.empty()) lines.emplace_back(number, line);
  }
  if (in.bad()) throw std::runtime_error("--script: cannot read " + path);
  std::vector<json> results(lines.size());
  size_t left = lines.size();
  for (size_t i = 0; i < lines.size(); ++i) {
    results[i] = {{"request", i}, {"output_ids", json::array()}};
    Submit(engine, lines[i].second, lines[i].first, &results[i], &left);
    // With --margin auto each learns from those before it.
    while (engine->learns() && left > lines.size() - 1 - i) {
      engine->Step();
      watch.on_ready();
    }
  }
  while (left > 0) {
    engine->Step();
    watch.on_ready();  // costs one look at the sockets
  }
  for (const json& result : results) std::cout << result.dump() << '\n';
  if (!std::cout.flush()) throw std::runtime_error("--script: the results cannot be written");
}

}  // namespace weft
