// weft-bench serve.
#pragma once

#include "tools/bench/serve/options.h"

namespace weft::bench {

int RunServe(const ServeOptions& options);  // the exit code

}  // namespace weft::bench
