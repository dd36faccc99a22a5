#include "server/config/engine_mistakes.h"

#include <cstdlib>

namespace weft::server {
namespace {

using Values = std::map<std::string, std::string>;

std::string Get(const Values& values, const std::string& name, const std::string& standard) {
  const auto found = values.find(name);
  return found == values.end() || found->second.empty() ? standard : found->second;
}

// Numbers were checked.
long long Number(const Values& values, const std::string& name, const std::string& standard) {
  return std::atoll(Get(values, name, standard).c_str());
}

// "--index-topk (300)"
std::string Named(const std::string& name, long long value) {
  return name + " (" + std::to_string(value) + ")";
}

}  // namespace

std::string EngineMistake(const Values& values) {
  if (Get(values, "--experts", "auto") != "auto" &&
      Get(values, "--partition", "gather") != "reduce") {
    return "--experts: needs --partition reduce";
  }
  if (Get(values, "--margin", "off") == "auto" && Get(values, "--backend", "auto") == "cuda") {
    return "--margin: auto is for --backend cpu";
  }
  const long long topk = Number(values, "--index-topk", "0");
  const long long most = Number(values, "--max-index-topk", "0");
  if (most > 0 && topk > most) {
    return Named("--index-topk", topk) + " must not exceed " + Named("--max-index-topk", most);
  }
  const long long page = Number(values, "--page-tokens", "64");
  const long long block = Number(values, "--block-size", "1");
  if (page % block != 0) {
    return Named("--page-tokens", page) + " must be a multiple of " + Named("--block-size", block);
  }
  return "";
}

}  // namespace weft::server
