// The Communicator over MPI, for CPU ranks. MPI runs at MPI_THREAD_FUNNELED: only the thread that made
// the session may call collectives. Waits yield the core, since ranks may outnumber cores.
#pragma once

#include <memory>
#include <string>

#include "engine/comm/communicator.h"

namespace weft {

// Owns MPI_Init_thread / MPI_Finalize. One per process, in main().
class MpiSession {
 public:
  MpiSession(int* argc, char*** argv);  // throws CommError
  ~MpiSession();
  int rank() const { return rank_; }
  int size() const { return size_; }

  // `text` of rank 0 on every rank: used once, to tell the control socket's address.
  std::string BroadcastText(const std::string& text);
  std::unique_ptr<Communicator> MakeCommunicator();
  // Ends every rank of the job at once (MPI_Abort); does not return.
  [[noreturn]] void Abort(int exit_code);

 private:
  int rank_ = 0;
  int size_ = 1;
};

}  // namespace weft
