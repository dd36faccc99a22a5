#include "tools/bench/serve/requests.h"

#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <stdexcept>

namespace weft::bench {
namespace {

using nlohmann::json;

// The same on every machine, unlike the standard library's distributions.
int64_t Draw(std::mt19937_64* random, int64_t low, int64_t high) {
  return low + static_cast<int64_t>((*random)() % static_cast<uint64_t>(high - low + 1));
}

void CheckLength(const v1::ModelInfo& model, int64_t prompt, int64_t output) {
  if (prompt + output <= model.max_context()) return;
  throw std::runtime_error("a prompt of " + std::to_string(prompt) + " tokens and an answer of " +
                           std::to_string(output) +
                           " are more than the server's longest context, " +
                           std::to_string(model.max_context()));
}

void SetRest(const ServeOptions& options, uint64_t seed, int64_t max_tokens,
             v1::GenerateRequest* request) {
  v1::Sampling* sampling = request->mutable_sampling();
  sampling->set_temperature(options.temperature);
  sampling->set_top_p(1);
  sampling->set_seed(seed);
  sampling->set_max_tokens(static_cast<uint32_t>(max_tokens));
  request->set_priority(options.priority);
  request->set_client_id(options.client_id);
}

v1::GenerateRequest OfLine(const ServeOptions& options, const std::string& text, uint64_t seed) {
  const json line = json::parse(text);
  v1::GenerateRequest request;
  int64_t max_tokens = options.output_tokens.high;
  for (const auto& [key, value] : line.items()) {
    if (key == "text") {
      request.set_text(value.get<std::string>());
    } else if (key == "tokens") {
      for (const json& id : value) request.mutable_tokens()->add_ids(id.get<int32_t>());
    } else if (key == "max_tokens") {
      max_tokens = value.get<int64_t>();
    } else {
      throw std::runtime_error("has no use for '" + key + "'");
    }
  }
  if (request.prompt_case() == v1::GenerateRequest::PROMPT_NOT_SET) {
    throw std::runtime_error("needs text or tokens");
  }
  SetRest(options, seed, max_tokens, &request);
  return request;
}

std::vector<v1::GenerateRequest> OfFile(const ServeOptions& options, int64_t count) {
  std::ifstream file(options.prompts);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) {
    if (!line.empty()) lines.push_back(line);
  }
  if (lines.empty()) throw std::runtime_error(options.prompts + " holds no prompts");
  std::vector<v1::GenerateRequest> requests;
  for (int64_t i = 0; i < count; ++i) {
    const size_t at = static_cast<size_t>(i) % lines.size();
    try {
      requests.push_back(OfLine(options, lines[at], options.seed + static_cast<uint64_t>(i)));
    } catch (const std::exception& error) {
      throw std::runtime_error(options.prompts + " line " + std::to_string(at + 1) + ": " +
                               error.what());
    }
  }
  return requests;
}

}  // namespace

v1::GenerateRequest RandomRequest(const ServeOptions& options, const v1::ModelInfo& model,
                                  int64_t prompt_tokens, int64_t output_tokens, uint64_t seed) {
  CheckLength(model, prompt_tokens, output_tokens);
  std::mt19937_64 random(seed);
  v1::GenerateRequest request;
  for (int64_t i = 0; i < prompt_tokens; ++i) {
    request.mutable_tokens()->add_ids(
        static_cast<int32_t>(Draw(&random, 0, model.vocab_size() - 1)));
  }
  SetRest(options, seed, output_tokens, &request);
  request.mutable_sampling()->set_ignore_eos(true);
  return request;
}

std::string Salt(const std::string& part) {
  static const uint64_t drawn = uint64_t{std::random_device()()} << 32 | std::random_device()();
  return "weft-bench " + std::to_string(drawn) + " " + part;
}

std::vector<v1::GenerateRequest> MakeRequests(const ServeOptions& options,
                                              const v1::ModelInfo& model, int64_t count) {
  if (!options.prompts.empty()) return OfFile(options, count);
  CheckLength(model, options.prompt_tokens.high, options.output_tokens.high);
  std::mt19937_64 random(options.seed);
  std::vector<v1::GenerateRequest> requests;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t prompt = Draw(&random, options.prompt_tokens.low, options.prompt_tokens.high);
    const int64_t output = Draw(&random, options.output_tokens.low, options.output_tokens.high);
    requests.push_back(RandomRequest(options, model, prompt, output, random()));
  }
  return requests;
}

}  // namespace weft::bench
