#include "engine/cuda/cuda_list_inbox.h"

#include <algorithm>
#include <vector>

#include "kernels/ops/unite_inbox.h"

namespace weft {
CudaListInbox::CudaListInbox(int ranks, int32_t capacity, Communicator* comm, int64_t* generation)
    : epochs_(generation) {
  if (ranks == 1 || !FitsUniteInbox(ranks, capacity)) return;
  const std::vector<void*> shared =
      comm->AllocateShared(static_cast<size_t>(ListInbox::Bytes(ranks, kRows, capacity)));
  if (shared.empty()) return;
  inbox_.ranks = ranks;
  inbox_.rank = comm->rank();
  inbox_.rows = kRows;
  inbox_.capacity = capacity;
  std::copy(shared.begin(), shared.end(), inbox_.packets);
  inbox_.epochs = epochs_.Get(kRows);
  WEFT_CUDA_CHECK(cudaMemset(inbox_.epochs, 0, kRows * sizeof(uint32_t)));
  WEFT_CUDA_CHECK(cudaDeviceSynchronize());  // no stream of ours waits for it
  inbox_.aborted = comm->AbortWord();
}

bool CudaListInbox::Fits(int64_t rows, int32_t capacity) const {
  return inbox_.ranks > 1 && rows > 0 && rows <= inbox_.rows && capacity <= inbox_.capacity;
}

ListInbox CudaListInbox::From(int64_t row) const {
  ListInbox inbox = inbox_;
  const int64_t skipped = ListInbox::Bytes(inbox.ranks, row, inbox.capacity);
  for (int g = 0; g < inbox.ranks; ++g) {
    inbox.packets[g] = static_cast<char*>(inbox.packets[g]) + skipped;
  }
  inbox.epochs += row;
  inbox.rows -= static_cast<int32_t>(row);
  return inbox;
}

}  // namespace weft
