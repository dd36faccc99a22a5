#include "server/config/engine_mistakes.h"

#include <cstdlib>

#include "server/config/engine_rules.h"

namespace weft::server {
namespace {

using Values = std::map<std::string, std::string>;

// What was given, or the engine's default.
std::string Get(const Values& values, const std::string& name) {
  const auto found = values.find(name);
  return found == values.end() || found->second.empty() ? StandardOf(name) : found->second;
}

// Numbers were checked.
long long Number(const Values& values, const std::string& name) {
  return std::atoll(Get(values, name).c_str());
}

// "--index-topk (300)"
std::string Named(const std::string& name, long long value) {
  return name + " (" + std::to_string(value) + ")";
}

}  // namespace

std::string EngineMistake(const Values& values) {
  if (Get(values, "--experts") != "auto" && Get(values, "--partition") != "reduce") {
    return "--experts: needs --partition reduce";
  }
  if (Get(values, "--margin") == "auto" && Get(values, "--backend") == "cuda") {
    return "--margin: auto is for --backend cpu";
  }
  const long long topk = Number(values, "--index-topk");
  const long long most = Number(values, "--max-index-topk");
  if (most > 0 && topk > most) {
    return Named("--index-topk", topk) + " must not exceed " + Named("--max-index-topk", most);
  }
  const long long page = Number(values, "--page-tokens");
  const long long block = Number(values, "--block-size");
  if (page % block != 0) {
    return Named("--page-tokens", page) + " must be a multiple of " + Named("--block-size", block);
  }
  return "";
}

}  // namespace weft::server
