#include "engine/app/script_request.h"

#include <functional>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <type_traits>

#include "engine/model/json_keys.h"
#include "engine/model/shown.h"

namespace weft {
namespace {

using nlohmann::json;

// Values as they stand: a number that is not whole, or does not fit, is an error and never another
// number.
template <typename T>
T Number(const json& value, const std::string& key) {
  if constexpr (std::is_floating_point_v<T>) {
    if (value.is_number()) return value.get<T>();
    throw std::runtime_error(key + " must be a number, got " + Shown(value));
  } else {
    const bool fits = value.is_number_unsigned()
                          ? value.get<uint64_t>() <= uint64_t{std::numeric_limits<T>::max()}
                          : value.is_number_integer() && std::is_signed_v<T> &&
                                value.get<int64_t>() >= int64_t{std::numeric_limits<T>::min()};
    if (fits) return value.get<T>();
    throw std::runtime_error(key + " must be a whole number that fits, got " + Shown(value));
  }
}

std::vector<int32_t> Ids(const json& value, const std::string& key) {
  if (!value.is_array()) throw std::runtime_error(key + " must be a list, got " + Shown(value));
  std::vector<int32_t> ids;
  for (const json& id : value) ids.push_back(Number<int32_t>(id, key));
  return ids;
}

// {"17": -1.5}: token ids as keys.
std::vector<LogitBias> Biases(const json& value) {
  if (!value.is_object()) {
    throw std::runtime_error("logit_bias must be an object of token ids, got " + Shown(value));
  }
  std::map<int32_t, float> biases;
  for (const auto& [key, bias] : value.items()) {
    const json id = json::parse(key, nullptr, /*allow_exceptions=*/false);
    biases[Number<int32_t>(id, "logit_bias's key")] = Number<float>(bias, "logit_bias");
  }
  std::vector<LogitBias> ascending;
  for (const auto& [id, bias] : biases) ascending.push_back({id, bias});
  return ascending;
}

SelectionWish WishOf(const json& selection) {
  if (!selection.is_object()) {
    throw std::runtime_error("selection must be an object, got " + Shown(selection));
  }
  SelectionWish wish;
  for (const auto& [key, value] : selection.items()) {
    if (key == "mode") {
      SelectionMode mode;
      if (!value.is_string() || !ParseSelectionMode(value.get<std::string>(), &mode)) {
        throw std::runtime_error(
            "selection.mode must be exact, interleaved, certified or dense, got " + Shown(value));
      }
      wish.mode = mode;
    } else if (key == "index_topk") {
      wish.topk = Number<int32_t>(value, "selection.index_topk");
    } else if (key == "coverage") {
      wish.gamma = Number<double>(value, "selection.coverage");
    } else {
      throw std::runtime_error("selection has no key '" + ShownText(key) + "'");
    }
  }
  return wish;
}

void ReadTrace(const json& selected, EngineRequest* request) {
  if (!selected.is_object()) {
    throw std::runtime_error("selected must be an object, got " + Shown(selected));
  }
  for (const auto& [key, value] : selected.items()) {
    if (key != "layers" && key != "outputs") {
      throw std::runtime_error("selected has no key '" + ShownText(key) + "'");
    }
    (key == "layers" ? request->traced_layers : request->traced_outputs) =
        Ids(value, "selected." + key);
  }
}

using Setter = std::function<void(const json&, const std::string& key, EngineRequest*)>;

template <typename T>
Setter Sets(T SamplingParams::*member) {
  return [member](const json& value, const std::string& key, EngineRequest* request) {
    request->sampling.*member = Number<T>(value, key);
  };
}

template <typename T>
Setter Sets(T EngineRequest::*member) {
  return [member](const json& value, const std::string& key, EngineRequest* request) {
    if constexpr (std::is_same_v<T, std::vector<int32_t>>) {
      request->*member = Ids(value, key);
    } else if constexpr (std::is_same_v<T, std::string>) {
      if (!value.is_string()) throw std::runtime_error(key + " must be text, got " + Shown(value));
      request->*member = value.get<std::string>();
    } else {
      request->*member = Number<T>(value, key);
    }
  };
}

const std::map<std::string, Setter>& Setters() {
  static const std::map<std::string, Setter> setters = {
      {"prompt_ids", Sets(&EngineRequest::prompt)},
      {"committed_ids", Sets(&EngineRequest::committed)},
      {"stop_ids", Sets(&EngineRequest::stop_ids)},
      {"max_tokens", Sets(&EngineRequest::max_tokens)},
      {"logprobs_from",
       [](const json& value, const std::string& key, EngineRequest* request) {
         request->logprobs_from = Number<int32_t>(value, key);
         if (request->logprobs_from < 0) {
           throw std::runtime_error("logprobs_from must be at least 1");
         }
       }},
      {"prompt_logprobs", Sets(&EngineRequest::prompt_alternatives)},
      {"cache_salt", Sets(&EngineRequest::cache_salt)},
      {"priority", Sets(&EngineRequest::priority)},
      {"client_id", Sets(&EngineRequest::client)},
      {"selected", [](const json& value, const std::string&,
                      EngineRequest* request) { ReadTrace(value, request); }},
      {"temperature", Sets(&SamplingParams::temperature)},
      {"top_p", Sets(&SamplingParams::top_p)},
      {"top_k", Sets(&SamplingParams::top_k)},
      {"min_p", Sets(&SamplingParams::min_p)},
      {"seed", Sets(&SamplingParams::seed)},
      {"repetition_penalty", Sets(&SamplingParams::repetition_penalty)},
      {"frequency_penalty", Sets(&SamplingParams::frequency_penalty)},
      {"presence_penalty", Sets(&SamplingParams::presence_penalty)},
      {"min_tokens", Sets(&SamplingParams::min_tokens)},
      {"logprobs", Sets(&SamplingParams::alternatives)},
      {"logit_bias", [](const json& value, const std::string&,
                        EngineRequest* request) { request->sampling.logit_bias = Biases(value); }},
  };
  return setters;
}

// As json::parse, but a key that comes twice in an object is an error, and nesting that no request
// has, since printing recurses.
json ParseOnce(const std::string& text) {
  std::vector<std::set<std::string>> keys;  // of the objects that are open
  return json::parse(text, [&](int depth, json::parse_event_t event, json& value) {
    if (depth > kMaxJsonDepth) {
      throw std::runtime_error("is nested deeper than " + std::to_string(kMaxJsonDepth));
    }
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    if (event == json::parse_event_t::key && !keys.back().insert(value.get<std::string>()).second) {
      throw std::runtime_error("the key '" + ShownText(value.get<std::string>()) +
                               "' is there twice");
    }
    return true;
  });
}

// What the front end refuses at its own door.
void CheckAsFrontEnd(const EngineRequest& request) {
  if (request.prompt_alternatives > 0 && request.logprobs_from < 0) {
    throw std::runtime_error("prompt_logprobs must be 0 without logprobs_from, got " +
                             std::to_string(request.prompt_alternatives));
  }
  for (char c : request.client) {
    if ('!' <= c && c <= '~') continue;
    throw std::runtime_error("client_id must be of visible ASCII characters, got '" +
                             request.client.substr(0, 128) + "'");
  }
  if (request.traced_layers.empty() != request.traced_outputs.empty()) {
    throw std::runtime_error("selected must name layers and outputs, or neither");
  }
}

}  // namespace

EngineRequest ParseScriptRequest(const std::string& text, SelectionWish* wish) {
  const json line = ParseOnce(text);
  if (!line.is_object()) throw std::runtime_error("a request must be an object");
  EngineRequest request;
  request.max_tokens = line.contains("logprobs_from") ? 0 : 16;
  for (const auto& [key, value] : line.items()) {
    if (key == "selection") {
      *wish = WishOf(value);
      continue;
    }
    const auto setter = Setters().find(key);
    if (setter == Setters().end())
      throw std::runtime_error("a request has no key '" + ShownText(key) + "'");
    setter->second(value, key, &request);
  }
  CheckAsFrontEnd(request);
  return request;
}

}  // namespace weft
