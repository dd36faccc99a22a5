#include "engine/comm/nccl_setup.h"

#include <cuda_runtime.h>

#include <array>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "kernels/cuda/check.h"

namespace weft {
namespace {

// Read by NCCL at its first call. Multicast over NVLink stays off: a process that ends badly while
// it uses it can take the host's other GPUs along. Two communicators make graph mixing needless.
void SetNcclDefaults() {
  setenv("NCCL_NVLS_ENABLE", "0", 1);
  setenv("NCCL_GRAPH_MIXING_SUPPORT", "0", 0);
}

void CheckNccl(ncclResult_t result, const char* what) {
  if (result != ncclSuccess) throw CommError(NcclText(what, result, nullptr));
}

// Each kind of exchange once, so that connections are made now, and not inside a capture.
void TryOut(ncclComm_t comm, int rank, int size, cudaStream_t stream, float* data) {
  CheckNccl(ncclAllGather(data + rank, data, 1, ncclFloat32, comm, stream), "ncclAllGather");
  CheckNccl(ncclAllReduce(data, data, 1, ncclFloat32, ncclSum, comm, stream), "ncclAllReduce");
  CheckNccl(ncclBroadcast(data, data, 1, ncclFloat32, 0, comm, stream), "ncclBroadcast");
  CheckNccl(ncclGroupStart(), "ncclGroupStart");
  for (int r = 0; r < size; ++r) {
    CheckNccl(ncclSend(data + r, 1, ncclFloat32, r, comm, stream), "ncclSend");
    CheckNccl(ncclRecv(data + size + r, 1, ncclFloat32, r, comm, stream), "ncclRecv");
  }
  CheckNccl(ncclGroupEnd(), "ncclGroupEnd");
}

void Connect(const NcclOptions& options, int rank, int size, ncclComm_t comms[2]) {
  WEFT_CUDA_CHECK(cudaSetDevice(options.device));
  ncclUniqueId id;
  if (options.id.size() != sizeof(id.internal)) {
    throw CommError("NCCL's id must have " + std::to_string(sizeof(id.internal)) +
                    " bytes, rank 0 sent " + std::to_string(options.id.size()));
  }
  std::memcpy(id.internal, options.id.data(), sizeof(id.internal));
  CheckNccl(ncclCommInitRank(&comms[0], size, id, rank), "ncclCommInitRank");
  CheckNccl(ncclCommSplit(comms[0], 0, rank, &comms[1], nullptr), "ncclCommSplit");
  cudaStream_t stream;
  float* data = nullptr;
  const size_t bytes = 2 * static_cast<size_t>(size) * sizeof(float);
  WEFT_CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  WEFT_CUDA_CHECK(cudaMalloc(&data, bytes));
  WEFT_CUDA_CHECK(cudaMemsetAsync(data, 0, bytes, stream));
  for (int i = 0; i < 2; ++i) TryOut(comms[i], rank, size, stream, data);
  WEFT_CUDA_CHECK(cudaStreamSynchronize(stream));
  WEFT_CUDA_CHECK(cudaFree(data));
  WEFT_CUDA_CHECK(cudaStreamDestroy(stream));
}

// Shared with the thread that connects, which is left behind when it does not return.
struct Attempt {
  std::mutex mutex;
  std::condition_variable done_changed;
  bool done = false;
  std::string error;
  ncclComm_t comms[2] = {nullptr, nullptr};
};

// "" when connected, else why not.
std::string ConnectInTime(const NcclOptions& options, int rank, int size,
                          const std::shared_ptr<Attempt>& attempt) {
  std::thread([options, rank, size, attempt] {
    ncclComm_t comms[2] = {nullptr, nullptr};
    std::string error;
    try {
      Connect(options, rank, size, comms);
    } catch (const std::exception& e) {
      error = e.what();
    }
    const std::lock_guard lock(attempt->mutex);
    attempt->comms[0] = comms[0];
    attempt->comms[1] = comms[1];
    attempt->error = error;
    attempt->done = true;
    attempt->done_changed.notify_all();
  }).detach();
  std::unique_lock lock(attempt->mutex);
  if (!attempt->done_changed.wait_for(lock, options.init_timeout, [&] { return attempt->done; })) {
    return "still waiting for the others after " +
           std::to_string(options.init_timeout.count() / 1000.0).substr(0, 5) + " s";
  }
  return attempt->error;
}

using Account = std::array<char, 400>;

Account ToAccount(const std::string& text) {
  Account account{};
  std::copy_n(text.data(), std::min(text.size(), account.size() - 1), account.data());
  return account;
}

std::string Everyone(const NcclOptions& options, int size) {
  std::string text;
  for (int r = 0; r < size; ++r) text += (r == 0 ? "" : ", ") + NcclRankName(options, r);
  return text;
}

// What each rank says, "" for all is well. Throws when a rank does not come to say anything.
std::vector<Account> Gather(const NcclOptions& options, Communicator* host,
                            const std::string& own) {
  const auto size = static_cast<size_t>(host->size());
  std::vector<Account> accounts(size);
  const Account account = ToAccount(own);
  try {
    host->AllGather(account.data(), accounts.data(), sizeof(Account));
  } catch (const CommError& error) {
    throw CommError("NCCL did not come up: " + std::string(error.what()) + "; ranks are " +
                    Everyone(options, host->size()));
  }
  return accounts;
}

// Ranks that would not understand one another, before they try.
void AgreeOnVersion(const NcclOptions& options, Communicator* host) {
  int version = 0;
  CheckNccl(ncclGetVersion(&version), "ncclGetVersion");
  const std::vector<Account> versions = Gather(options, host, std::to_string(version));
  for (int r = 0; r < host->size(); ++r) {
    if (versions[static_cast<size_t>(r)] == versions[0]) continue;
    throw CommError("ranks have different versions of NCCL: " + NcclRankName(options, 0) + " has " +
                    versions[0].data() + ", " + NcclRankName(options, r) + " has " +
                    versions[static_cast<size_t>(r)].data());
  }
}

}  // namespace

std::string NcclText(const char* what, ncclResult_t result, ncclComm_t comm) {
  const char* last = ncclGetLastError(comm);
  std::string text = std::string(what) + ": " + ncclGetErrorString(result);
  if (last != nullptr && *last != '\0') text += std::string(" (") + last + ")";
  return text;
}

std::string NcclRankName(const NcclOptions& options, int rank) {
  const auto index = static_cast<size_t>(rank);
  return index < options.ranks.size() ? options.ranks[index] : "rank " + std::to_string(rank);
}

std::string NewNcclId() {
  SetNcclDefaults();
  ncclUniqueId id;
  CheckNccl(ncclGetUniqueId(&id), "ncclGetUniqueId");
  return {id.internal, sizeof(id.internal)};
}

void ConnectNccl(const NcclOptions& options, Communicator* host, ncclComm_t comms[2]) {
  SetNcclDefaults();
  const auto deadline = host->deadline();
  host->SetDeadline(options.init_timeout + std::chrono::seconds(20));
  AgreeOnVersion(options, host);
  const auto attempt = std::make_shared<Attempt>();
  const std::string own = ConnectInTime(options, host->rank(), host->size(), attempt);
  const std::vector<Account> accounts = Gather(options, host, own);
  host->SetDeadline(deadline);
  std::string wrong;
  for (int r = 0; r < host->size(); ++r) {
    const char* text = accounts[static_cast<size_t>(r)].data();
    if (*text == '\0') continue;
    wrong += (wrong.empty() ? "" : "; ") + NcclRankName(options, r) + ": " + text;
  }
  if (!wrong.empty()) {
    throw CommError("NCCL did not come up between " + Everyone(options, host->size()) + ": " +
                    wrong + " (NCCL_DEBUG=INFO tells more)");
  }
  comms[0] = attempt->comms[0];
  comms[1] = attempt->comms[1];
}

}  // namespace weft
