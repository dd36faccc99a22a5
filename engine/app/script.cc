#include "engine/app/script.h"

#include <fstream>
#include <iostream>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <type_traits>

namespace weft {
namespace {

using nlohmann::json;

// Values as they stand: a number that is not whole, or does not fit, is an error and never another
// number.
template <typename T>
T Number(const json& value, const std::string& key) {
  if constexpr (std::is_floating_point_v<T>) {
    if (value.is_number()) return value.get<T>();
    throw std::runtime_error(key + " must be a number, got " + value.dump());
  } else {
    const bool fits = value.is_number_unsigned()
                          ? value.get<uint64_t>() <= uint64_t{std::numeric_limits<T>::max()}
                          : value.is_number_integer() && std::is_signed_v<T> &&
                                value.get<int64_t>() >= int64_t{std::numeric_limits<T>::min()};
    if (fits) return value.get<T>();
    throw std::runtime_error(key + " must be a whole number that fits, got " + value.dump());
  }
}

std::vector<int32_t> Ids(const json& value, const std::string& key) {
  if (!value.is_array()) throw std::runtime_error(key + " must be a list, got " + value.dump());
  std::vector<int32_t> ids;
  for (const json& id : value) ids.push_back(Number<int32_t>(id, key));
  return ids;
}

SelectionWish WishOf(const json& selection) {
  if (!selection.is_object()) {
    throw std::runtime_error("selection must be an object, got " + selection.dump());
  }
  SelectionWish wish;
  for (const auto& [key, value] : selection.items()) {
    if (key == "mode") {
      SelectionMode mode;
      if (!value.is_string() || !ParseSelectionMode(value.get<std::string>(), &mode)) {
        throw std::runtime_error(
            "selection.mode must be exact, interleaved, certified or dense, got " + value.dump());
      }
      wish.mode = mode;
    } else if (key == "index_topk") {
      wish.topk = Number<int32_t>(value, "selection.index_topk");
    } else if (key == "coverage") {
      wish.gamma = Number<double>(value, "selection.coverage");
    } else {
      throw std::runtime_error("selection has no key '" + key + "'");
    }
  }
  return wish;
}

EngineRequest RequestOf(const json& line, SelectionWish* wish) {
  if (!line.is_object()) throw std::runtime_error("a request must be an object");
  EngineRequest request;
  request.max_tokens = line.contains("logprobs_from") ? 0 : 16;
  for (const auto& [key, value] : line.items()) {
    if (key == "prompt_ids") {
      request.prompt = Ids(value, key);
    } else if (key == "committed_ids") {
      request.committed = Ids(value, key);
    } else if (key == "stop_ids") {
      request.stop_ids = Ids(value, key);
    } else if (key == "max_tokens") {
      request.max_tokens = Number<int32_t>(value, key);
    } else if (key == "logprobs_from") {
      request.logprobs_from = Number<int32_t>(value, key);
      if (request.logprobs_from < 0) throw std::runtime_error("logprobs_from must be at least 1");
    } else if (key == "temperature") {
      request.sampling.temperature = Number<float>(value, key);
    } else if (key == "top_p") {
      request.sampling.top_p = Number<float>(value, key);
    } else if (key == "seed") {
      request.sampling.seed = Number<uint64_t>(value, key);
    } else if (key == "cache_salt") {
      if (!value.is_string())
        throw std::runtime_error("cache_salt must be text, got " + value.dump());
      request.cache_salt = value.get<std::string>();
    } else if (key == "selection") {
      *wish = WishOf(value);
    } else {
      throw std::runtime_error("a request has no key '" + key + "'");
    }
  }
  return request;
}

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
  if (figures.audited > 0) {
    out["audited"] = figures.audited;
    out["audit_wrong"] = figures.audit_wrong;
    out["audit_recall"] = figures.audit_recall_sum / static_cast<double>(figures.audited);
  }
  return out;
}

void Record(const EngineEvent& event, json* result) {
  if (const auto* token = std::get_if<TokenEvent>(&event)) {
    (*result)["output_ids"].push_back(token->id);
  } else if (const auto* scores = std::get_if<ScoresEvent>(&event)) {
    for (float value : scores->logprobs) (*result)["logprobs"].push_back(value);
    for (int32_t id : scores->argmax) (*result)["argmax"].push_back(id);
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
    const json line = json::parse(text);
    SelectionWish wish;
    EngineRequest request = RequestOf(line, &wish);
    status = engine->ResolveSelection(wish, &request.selection);
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
  }
  while (left > 0) {
    engine->Step();
    watch.on_ready();  // costs one look at the sockets
  }
  for (const json& result : results) std::cout << result.dump() << '\n';
  if (!std::cout.flush()) throw std::runtime_error("--script: the results cannot be written");
}

}  // namespace weft
