// The Communicator over MPI, for CPU ranks. MPI runs at MPI_THREAD_FUNNELED: only the thread that
// made the session may call collectives. Waits yield the core, since ranks may outnumber cores.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "engine/comm/communicator.h"

namespace weft {

// How data travels between ranks. Shared memory needs all ranks on one machine; MPI point-to-point
// works everywhere. kAuto: shared memory where all ranks can map it, else MPI.
enum class Transport { kAuto, kShared, kMpi };

// Owns MPI_Init_thread / MPI_Finalize. One per process, in main().
class MpiSession {
 public:
  MpiSession(int* argc, char*** argv);  // throws CommError
  // Finalizes, unless a communicator failed or the session is left by an exception: MPI_Finalize
  // would then wait for ranks that never come. mpirun ends the others when this process exits
  // without it.
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;
  int rank() const { return rank_; }
  int size() const { return size_; }

  // `text` of rank 0 on every rank: used once, to tell the control socket's address.
  std::string BroadcastText(const std::string& text);
  // Called by all ranks alike. Throws CommError on all when kShared is not possible.
  std::unique_ptr<Communicator> MakeCommunicator(Transport transport = Transport::kAuto);
  // Ends every rank of the job at once (MPI_Abort); does not return.
  [[noreturn]] void Abort(int exit_code);

 private:
  int rank_ = 0;
  int size_ = 1;
  int exceptions_ = 0;  // in flight when the session was made
  std::shared_ptr<std::atomic<bool>> failed_;
};

}  // namespace weft
