// What loading shares between backends.
#pragma once

#include "engine/app/load.h"
#include "engine/app/memory_plan.h"
#include "engine/model/pack_plan.h"

namespace weft {

// The lowest value of all ranks.
int64_t Lowest(Communicator* comm, int64_t value);

// Logs on rank 0.
LoadProgress ProgressPrinter(int rank);

// Pages that the longest context takes on each rank.
int64_t PagesOfContext(const EngineOptions& options, int ranks);

// What does not depend on the backend.
MemoryRequest CommonRequest(const EngineOptions& options, const CheckpointFolder& folder,
                            const Ready& ready);

// Plans this rank's memory, agrees with the others on the pages of the cache, and says so on rank
// 0.
void PlanTogether(const MemoryRequest& request, Ready* ready);

}  // namespace weft
