#include "engine/app/load_cuda.h"

#include <stdexcept>
#if WEFT_CUDA
#include <cuda_runtime_api.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <bit>

#include "engine/app/load_parts.h"
#include "engine/comm/device_communicator.h"
#include "engine/cuda/cuda_list_inbox.h"
#include "engine/cuda/cuda_runner.h"
#include "kernels/cuda/check.h"
#include "kernels/ops/unite_inbox.h"
#endif

namespace weft {
#if WEFT_CUDA
namespace {

// Beside what is measured: kernels that are loaded at their first call, CUDA graphs.
constexpr int64_t kHeadroom = int64_t{768} << 20;
constexpr double kCacheShare = 0.97;  // of what is left on the GPU

std::chrono::milliseconds Milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

// Ends the process at once: the stream would hand out what a broken collective left. mpirun ends
// the other ranks, and who started the engine starts another.
void EndProcess(const std::string& reason) {
  spdlog::error("{}", reason);
  spdlog::default_logger()->flush();
  std::_Exit(1);
}

// --deterministic promises bits, which have not been compared between peers and collectives.
bool WantsPeerAccess(const EngineOptions& options, const ModelConfig& config, int ranks) {
  return options.peer_access && options.exchange == Exchange::kRows && !options.deterministic &&
         FitsUniteInbox(ranks, config.index_topk);
}

std::unique_ptr<Communicator> Connect(const EngineOptions& options, const Ready& ready) {
  DeviceCommOptions comm;
  comm.device = ready.device.device;
  comm.stream = ready.context->stream();
  comm.staged = ready.backend.staged;
  comm.nccl_id = ready.backend.nccl_id;
  comm.ranks = ready.backend.ranks;
  comm.init_timeout = Milliseconds(options.startup_timeout);
  comm.ordered_sums = options.deterministic;
  comm.peer_access = WantsPeerAccess(options, ready.config, ready.comm->size());
  comm.on_failure = EndProcess;
  auto made = MakeDeviceCommunicator(comm, ready.comm.get());
  made->SetDeadline(Milliseconds(options.step_timeout));
  return made;
}

// What contexts, kernels' scratch and NCCL have taken by now, for one rank of those that share the
// GPU. Between two meetings of the ranks, so that none has begun to load.
int64_t TakenByLibraries(const Ready& ready, int64_t sharing) {
  Lowest(ready.comm.get(), 0);
  size_t free_bytes = 0, total = 0;
  WEFT_CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total));
  Lowest(ready.comm.get(), 0);
  return std::max<int64_t>(0, ready.device.free_bytes - static_cast<int64_t>(free_bytes)) / sharing;
}

// On the CPU the embedding stays in its file.
int64_t EmbeddingBytes(const ModelConfig& config, const CheckpointFolder& folder) {
  const auto found = folder.tensors().find("model.embed_tokens.weight");
  const bool wide = found == folder.tensors().end() || found->second.dtype_name != "BF16";
  return int64_t{config.vocab} * config.hidden * (wide ? 4 : 2);
}

// Tiles of scores and lists that do not grow with the step, and of its tokens the picks, what
// travels of them, and the lists of the union; latents that travel are sent and received.
int64_t SelectionBytes(const EngineOptions& options, const ModelConfig& config, int ranks) {
  constexpr int64_t kTiles = (int64_t{256} + 128) << 20;
  const int64_t widest = int64_t{options.max_index_topk} * (ranks > 1 ? ranks : 1);
  const int64_t token = 8 * int64_t{options.max_index_topk} + 8 * widest * (ranks > 1 ? 4 : 1);
  const int64_t inbox = ranks > 1 && WantsPeerAccess(options, config, ranks)
                            ? ListInbox::Bytes(ranks, CudaListInbox::kRows, config.index_topk)
                            : 0;
  return kTiles + options.max_step_tokens * token + inbox +
         (ranks > 1 ? options.exchange_memory / ranks : 0);
}

// Residual streams that a graph keeps, one a layer, to go back to from a failed certificate.
int64_t KeptBytes(const ModelConfig& config, const EngineOptions& options) {
  return int64_t{4} * config.layers * config.hidden *
         std::bit_ceil(static_cast<uint32_t>(options.max_sequences));
}

}  // namespace

void LoadCuda(const EngineOptions& options, const CheckpointFolder& folder, Ready* ready) {
  const int rank = ready->comm->rank(), ranks = ready->comm->size();
  ready->context = std::make_unique<CudaContext>(ready->device.device);
  ready->device_comm = Connect(options, *ready);
  const int64_t sharing = ready->backend.sharing.at(static_cast<size_t>(rank));
  MemoryRequest request = CommonRequest(options, folder, *ready);
  request.where = "GPU " + std::to_string(ready->device.device) + " " + ready->device.name;
  request.available = ready->device.free_bytes / sharing;
  request.libraries = TakenByLibraries(*ready, sharing) + kHeadroom;
  request.share = kCacheShare;
  request.most_pages = options.max_sequences * PagesOfContext(options, ranks) + 1;
  request.weights += EmbeddingBytes(ready->config, folder);
  request.workspace = StepBytes(ready->config, options.max_step_tokens, options.max_context,
                                options.max_index_topk, ranks, 1) +
                      SelectionBytes(options, ready->config, ranks) +
                      KeptBytes(ready->config, options);
  PlanTogether(request, ready);
  ready->isa = "cuda";
  ready->computing = request.where;
  // Ranks meet again with their weights loaded, which some may take long over.
  ready->comm->SetDeadline(Milliseconds(options.startup_timeout));
  ready->runner =
      MakeCudaRunner(ready->config, folder, ready->run, ready->device_comm.get(), ready->comm.get(),
                     ready->context.get(), ready->hooks, ProgressPrinter(rank));
  if (rank == 0 && ranks > 1) {
    spdlog::info("decode steps read one another's caches {}",
                 ready->device_comm->SharesMemory() ? "in the GPUs' memory" : "by collectives");
  }
}
#else
void LoadCuda(const EngineOptions&, const CheckpointFolder&, Ready*) {
  throw std::logic_error("rank 0 decided for a backend that this build does not have");
}
#endif

}  // namespace weft
