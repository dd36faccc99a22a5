// What the log tells while weights are loaded: a line every five seconds, and one in the end.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "engine/model/pack_plan.h"

namespace weft {

// `now` gives seconds; `say` takes the lines. Time counts from this call on.
LoadProgress MakeLoadProgress(std::function<double()> now,
                              std::function<void(const std::string&)> say);

}  // namespace weft
