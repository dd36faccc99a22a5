// Ranks as threads of one process: the exchange of MPI ranks on one machine, in private memory.
#include <sys/mman.h>

#include "engine/comm/shared_communicator.h"

namespace weft {

std::vector<std::unique_ptr<Communicator>> MakeThreadCommunicators(int size) {
  if (size < 1) {
    throw CommError("the number of ranks must be positive, got " + std::to_string(size));
  }
  // mmap: zeroed, and only what is used takes memory, so that tests can make many groups.
  const size_t bytes = SharedExchange::RegionBytes(size);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    throw CommError("no memory for an exchange of " + std::to_string(bytes) + " bytes");
  }
  std::shared_ptr<std::byte> region(static_cast<std::byte*>(memory),
                                    [bytes](std::byte* p) { munmap(p, bytes); });
  std::vector<std::unique_ptr<Communicator>> ranks;
  for (int r = 0; r < size; ++r) {
    ranks.push_back(std::make_unique<SharedCommunicator>(
        region, r, size, std::make_shared<std::atomic<bool>>(false)));
  }
  return ranks;
}

}  // namespace weft
