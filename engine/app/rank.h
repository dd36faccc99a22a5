// A rank's life: agree with the others, load, serve or follow, leave.
#pragma once

#include "engine/app/options.h"
#include "engine/app/signal_waiter.h"
#include "engine/comm/mpi_session.h"

namespace weft {

// Runs this process as one rank until the engine ends in order. Throws when start-up fails or a
// rank is lost; the caller ends the job.
void RunRank(EngineOptions options, MpiSession* session, SignalWaiter* signals);

}  // namespace weft
