#include "server/backend/engine_fit.h"

#include <spdlog/fmt/fmt.h>

#include <tuple>

namespace weft::server {
namespace {

using engine::v1::Admitted;
using engine::v1::EngineInfo;

constexpr size_t kLongestName = 80;

using Name = std::tuple<const char*, const std::string& (Admitted::*)() const>;
constexpr Name kNames[] = {{"model", &Admitted::model},
                           {"placement", &Admitted::placement},
                           {"partition", &Admitted::partition},
                           {"exchange", &Admitted::exchange},
                           {"arithmetic", &Admitted::arithmetic}};

}  // namespace

std::optional<Difference> FirstDifference(const Admitted& before, const Admitted& now) {
  for (const auto& [name, get] : kNames) {
    const std::string &then = (before.*get)(), &here = (now.*get)();
    if (then != here) {
      return Difference{name, then.substr(0, kLongestName), here.substr(0, kLongestName)};
    }
  }
  return std::nullopt;
}

std::string WhyUnfit(const EngineNeeds& needs, const EngineInfo& info) {
  if (needs.context > info.max_context()) {
    return fmt::format("the request may take {} tokens, the engine's longest context is {}",
                       needs.context, info.max_context());
  }
  if (!needs.honour) return "";
  if (const auto other = FirstDifference(*needs.honour, info.defaults())) {
    return fmt::format("it began under {} '{}', the engine is of '{}'", other->name, other->before,
                       other->now);
  }
  if (needs.honour->index_topk() > info.max_index_topk()) {
    return fmt::format("it began with index_topk {}, the most of the engine is {}",
                       needs.honour->index_topk(), info.max_index_topk());
  }
  return "";
}

std::string Unlike(const EngineInfo& a, const EngineInfo& b) {
  std::string text;
  const auto add = [&text](const char* name, const auto& of_a, const auto& of_b) {
    if (of_a == of_b) return;
    text += fmt::format("{}{} '{}' and '{}'", text.empty() ? "" : ", ", name, of_a, of_b);
  };
  const Admitted &x = a.defaults(), &y = b.defaults();
  for (const auto& [name, get] : kNames) add(name, (x.*get)(), (y.*get)());
  add("selection mode", SelectionMode_Name(x.mode()), SelectionMode_Name(y.mode()));
  add("index_topk", x.index_topk(), y.index_topk());
  add("m", x.m(), y.m());
  add("longest context", a.max_context(), b.max_context());
  add("max_index_topk", a.max_index_topk(), b.max_index_topk());
  return text;
}

}  // namespace weft::server
