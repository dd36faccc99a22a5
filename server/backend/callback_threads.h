// The threads on which gRPC runs the callbacks of our calls to engines.
#pragma once

namespace weft::server {

// Keeps them for the life of the process. gRPC (1.51) ends and joins them when the last channel or
// server that used them goes; where a callback itself lets go of that one, a thread would join
// itself, and the process aborts.
void KeepCallbackThreads();

}  // namespace weft::server
