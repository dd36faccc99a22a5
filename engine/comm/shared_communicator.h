// Collectives over a SharedExchange: ranks as threads, or as processes of one machine.
#pragma once

#include <functional>
#include <memory>

#include "engine/comm/communicator.h"
#include "engine/comm/shared_exchange.h"

namespace weft {

class SharedCommunicator : public Communicator {
 public:
  // See SharedExchange. `region` holds SharedExchange::RegionBytes(size) zeroed bytes.
  SharedCommunicator(std::shared_ptr<std::byte> region, int rank, int size,
                     std::shared_ptr<std::atomic<bool>> failed);

  void Abort(const std::string& reason) override { exchange_.Abort(reason); }
  std::string AbortReason() const override { return exchange_.AbortReason(); }

 protected:
  void DoAllGather(const void* send, void* recv, const std::vector<size_t>& bytes) override;
  void DoAllToAll(const void* send, const std::vector<size_t>& send_bytes, void* recv,
                  const std::vector<size_t>& recv_bytes) override;
  void DoBroadcast(void* data, size_t bytes, int root) override;
  void DoAllReduce(void* data, size_t count, Reduce op) override;
  void DoReduceScatter(const void* send, void* recv, const std::vector<size_t>& counts,
                       Reduce op) override;

 private:
  enum class Operation : uint64_t;
  // What one collective needs of its rounds.
  struct Rounds {
    const char* name;
    Operation operation;
    size_t count;  // rounds this rank needs; the greatest of all ranks is run
    // Bytes for rank r and from rank r, checked against what the others say.
    std::function<size_t(int)> sends;
    std::function<size_t(int)> expects;
    std::function<void(size_t round)> write;  // own slot
    std::function<void(size_t round)> read;   // the slots of all
  };
  void Run(const Rounds& rounds);
  void CheckSlots(const Rounds& rounds, size_t* count);
  void AllReduceGathered(std::byte* data, size_t count, Reduce op);

  SharedExchange exchange_;
  const size_t slot_bytes_;
  const size_t part_bytes_;  // of a slot, for one destination
  std::vector<const void*> parts_;
};

}  // namespace weft
