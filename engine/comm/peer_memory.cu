#include <cstdint>
#include <cstring>
#include <fstream>
#include <random>
#include <string>

#include "engine/comm/peer_memory.h"
#include "kernels/cuda/check.h"

namespace weft {
namespace {

// What a rank says about its memory.
struct Offer {
  char boot[64];     // of its host's kernel, so that containers of one host know each other
  uint64_t process;  // a number of its own
  int32_t device;
  int32_t usable;
  void* data;
  cudaIpcMemHandle_t handle;
};

uint64_t ThisProcess() {
  static const uint64_t number = [] {
    std::random_device random;
    return uint64_t{random()} << 32 | random();
  }();
  return number;
}

// Also forgets the error, which would come up in the next launch.
bool Succeeded(cudaError_t status) {
  if (status != cudaSuccess) cudaGetLastError();
  return status == cudaSuccess;
}

Offer MakeOffer(void* data, int device) {
  Offer offer{};
  std::ifstream("/proc/sys/kernel/random/boot_id").getline(offer.boot, sizeof(offer.boot));
  offer.process = ThisProcess();
  offer.device = device;
  offer.data = data;
  offer.usable = Succeeded(cudaIpcGetMemHandle(&offer.handle, data)) ? 1 : 0;
  return offer;
}

// The memory of `theirs` as `mine` sees it; null: out of reach.
void* Open(const Offer& mine, const Offer& theirs, std::vector<void*>* opened) {
  if (theirs.usable == 0 || mine.boot[0] == 0 ||
      std::strncmp(mine.boot, theirs.boot, sizeof(mine.boot)) != 0) {
    return nullptr;
  }
  if (mine.process == theirs.process && mine.device == theirs.device) return theirs.data;
  if (mine.process == theirs.process) {
    int can = 0;
    if (!Succeeded(cudaDeviceCanAccessPeer(&can, mine.device, theirs.device)) || can == 0) {
      return nullptr;
    }
    const cudaError_t status = cudaDeviceEnablePeerAccess(theirs.device, 0);
    if (!Succeeded(status) && status != cudaErrorPeerAccessAlreadyEnabled) return nullptr;
    return theirs.data;
  }
  void* data = nullptr;
  if (!Succeeded(cudaIpcOpenMemHandle(&data, theirs.handle, cudaIpcMemLazyEnablePeerAccess))) {
    return nullptr;
  }
  opened->push_back(data);
  return data;
}

}  // namespace

PeerMemory::~PeerMemory() {
  Close();
  for (void* data : owned_) cudaFree(data);
}

void PeerMemory::Close() {
  for (void* data : opened_) cudaIpcCloseMemHandle(data);
  opened_.clear();
}

std::vector<void*> PeerMemory::Allocate(size_t bytes, int device, bool wanted, Communicator* host) {
  int64_t unwanted = wanted && !out_of_reach_ ? 0 : 1;
  host->AllReduce(&unwanted, 1, Reduce::kSumI64);
  if (unwanted > 0) return {};
  // A small piece first: large ones are not made in vain.
  if (owned_.empty() && Exchange(kPage, device, host).empty()) {
    out_of_reach_ = true;
    return {};
  }
  return Exchange(bytes, device, host);
}

std::vector<void*> PeerMemory::Exchange(size_t bytes, int device, Communicator* host) {
  const size_t rounded = (bytes + kPage - 1) / kPage * kPage;
  void* own = nullptr;
  WEFT_CUDA_CHECK(cudaMalloc(&own, rounded));
  owned_.push_back(own);
  WEFT_CUDA_CHECK(cudaMemset(own, 0, rounded));
  WEFT_CUDA_CHECK(cudaDeviceSynchronize());
  std::vector<Offer> offers(static_cast<size_t>(host->size()));
  const Offer mine = MakeOffer(own, device);
  host->AllGather(&mine, offers.data(), sizeof(Offer));
  std::vector<void*> all, opened;
  int64_t missing = 0;
  for (int r = 0; r < host->size(); ++r) {
    void* data = r == host->rank() ? own : Open(mine, offers[static_cast<size_t>(r)], &opened);
    all.push_back(data);
    missing += data == nullptr || mine.usable == 0 ? 1 : 0;
  }
  host->AllReduce(&missing, 1, Reduce::kSumI64);
  if (missing == 0) {
    opened_.insert(opened_.end(), opened.begin(), opened.end());
    return all;
  }
  // Memory is freed once nobody has it open.
  for (void* data : opened) cudaIpcCloseMemHandle(data);
  host->AllReduce(&missing, 1, Reduce::kSumI64);
  owned_.pop_back();
  cudaFree(own);
  return {};
}

}  // namespace weft
