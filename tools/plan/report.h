// The planner's answers as text and as JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tools/plan/plan.h"

namespace weft::plan {

nlohmann::ordered_json Json(const Answer& answer);
std::string Page(const Answer& answer);                 // one answer at length
std::string Table(const std::vector<Answer>& answers);  // a line each

}  // namespace weft::plan
