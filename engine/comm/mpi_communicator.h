// Collectives by MPI point-to-point messages, for ranks on several machines. Not MPI's own
// collectives: these can be given up at a deadline, sum floats in our order, carry blocks over 2
// GiB, and measured no slower for the small messages of a decode step.
#pragma once

#include <mpi.h>

#include <array>
#include <atomic>
#include <memory>
#include <mutex>

#include "engine/comm/communicator.h"

namespace weft {

// Throws CommError with MPI's words unless rc is MPI_SUCCESS.
void CheckMpi(int rc, const char* what);

class MpiCommunicator : public Communicator {
 public:
  // Made by all ranks of `comm` alike. `failed` is set once a collective failed.
  MpiCommunicator(MPI_Comm comm, int rank, int size, std::shared_ptr<std::atomic<bool>> failed);
  ~MpiCommunicator() override;

  // From another thread than the owner's, the other ranks hear of it when the owner is in its next
  // collective: MPI_THREAD_FUNNELED forbids to tell them from here.
  void Abort(const std::string& reason) override;
  std::string AbortReason() const override;

 protected:
  void DoAllGather(const void* send, void* recv, const std::vector<size_t>& bytes) override;
  void DoAllToAll(const void* send, const std::vector<size_t>& send_bytes, void* recv,
                  const std::vector<size_t>& recv_bytes) override;
  void DoBroadcast(void* data, size_t bytes, int root) override;
  void DoAllReduce(void* data, size_t count, Reduce op) override;
  void DoReduceScatter(const void* send, void* recv, const std::vector<size_t>& counts,
                       Reduce op) override;

 private:
  void Receive(void* data, size_t bytes, int from);
  void Send(const void* data, size_t bytes, int to);
  // Until all posted messages are through; throws CommError.
  void Wait(const char* what);
  void CheckReceived(const char* what, bool in_status);
  std::string Unfinished() const;
  void ThrowIfAborted();
  void PollAbort();
  void TellAbort();
  [[noreturn]] void Fail(const std::string& reason);

  MPI_Comm data_;
  MPI_Comm aborts_;  // apart from data_, so that the pending wildcard receive slows no data match
  std::shared_ptr<std::atomic<bool>> failed_;
  std::vector<MPI_Request> requests_;
  std::vector<MPI_Status> statuses_;
  std::vector<int> expected_;  // bytes of each request, -1 for a send
  std::vector<int> peers_;     // rank at the other end of each
  std::vector<std::byte> scratch_;

  std::array<char, 500> heard_{};  // an abort of another rank
  MPI_Request heard_request_ = MPI_REQUEST_NULL;
  std::atomic<bool> aborted_{false};
  bool told_ = false;
  std::array<char, 500> told_text_{};
  mutable std::mutex reason_mutex_;
  std::string reason_;
};

}  // namespace weft
