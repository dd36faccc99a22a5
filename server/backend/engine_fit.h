// What an engine must be for a request to go there, and in what two engines differ.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "weft/engine/v1/engine.pb.h"

namespace weft::server {

// Of one request.
struct EngineNeeds {
  std::optional<engine::v1::Admitted> honour;  // what it was admitted under, once it has begun
  int64_t context = 0;                         // tokens of prompt and output together
};

// Something that shapes the numbers, and is not the same.
struct Difference {
  const char* name;
  std::string before, now;  // cut to what fits a message
};
std::optional<Difference> FirstDifference(const engine::v1::Admitted& before,
                                          const engine::v1::Admitted& now);

// "" when the engine can go on with the request, else why not.
std::string WhyUnfit(const EngineNeeds& needs, const engine::v1::EngineInfo& info);

// In what two engines of one model differ, as "placement 'x' and 'y', index_topk '4' and '8'"; ""
// when alike.
std::string Unlike(const engine::v1::EngineInfo& a, const engine::v1::EngineInfo& b);

}  // namespace weft::server
