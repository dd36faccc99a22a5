// weft-engine --check: what a model folder holds, what each rank would hold, and what is wrong.
#pragma once

#include <iosfwd>

#include "engine/app/options.h"

namespace weft {

// Prints the report of options.check; false when something is wrong.
bool ReportModel(const EngineOptions& options, std::ostream& out);

// The same on standard output, as an exit code: 0 or 1.
int CheckModel(const EngineOptions& options);

}  // namespace weft
