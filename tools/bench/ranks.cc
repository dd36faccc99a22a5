#include "tools/bench/ranks.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <thread>
#include <vector>

#include "engine/comm/device_communicator.h"
#include "kernels/cuda/check.h"

namespace weft::bench {
namespace {

constexpr size_t kScratch = size_t{512} << 20;
constexpr int kWarm = 5, kLaunches = 60;

void RunRank(int r, int ranks, bool peer_access, const std::string& id, Communicator* host,
             const std::function<void(Rank&)>& body) {
  CudaContext context(r, kScratch);
  DeviceCommOptions options;
  options.device = r;
  options.stream = context.stream();
  options.nccl_id = id;
  options.peer_access = peer_access;
  for (int i = 0; i < ranks; ++i) options.ranks.push_back("rank " + std::to_string(i));
  const auto comm = MakeDeviceCommunicator(options, host);
  Rank rank{r, ranks, &context, host, comm.get()};
  body(rank);
  WEFT_CUDA_CHECK(cudaStreamSynchronize(context.stream()));
}

}  // namespace

int Gpus() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

void OnRanks(int ranks, bool peer_access, const std::function<void(Rank&)>& body) {
  const auto hosts = MakeThreadCommunicators(ranks);
  const std::string id = ranks > 1 && HaveNccl() ? NewNcclId() : "";
  std::vector<std::exception_ptr> thrown(hosts.size());
  std::vector<std::thread> threads;
  for (size_t r = 0; r < hosts.size(); ++r) {
    threads.emplace_back([&, r] {
      try {
        RunRank(static_cast<int>(r), ranks, peer_access, id, hosts[r].get(), body);
      } catch (const std::exception& error) {
        thrown[r] = std::current_exception();
        hosts[r]->Abort(error.what());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : thrown) {
    if (error) std::rethrow_exception(error);
  }
}

double GraphMicroseconds(Rank* rank, int calls, const std::function<void(int)>& op) {
  const cudaStream_t stream = rank->context->stream();
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  WEFT_CUDA_CHECK(cudaStreamSynchronize(stream));
  WEFT_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < calls; ++i) op(i);
  WEFT_CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
  WEFT_CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
  std::vector<cudaEvent_t> events(kLaunches + 1);
  for (cudaEvent_t& event : events) WEFT_CUDA_CHECK(cudaEventCreate(&event));
  // What allocates on one GPU may wait for kernels of another that wait for the first.
  int64_t meet = 0;
  rank->host->AllReduce(&meet, 1, Reduce::kMaxI64);
  for (int i = 0; i < kWarm; ++i) WEFT_CUDA_CHECK(cudaGraphLaunch(exec, stream));
  WEFT_CUDA_CHECK(cudaStreamSynchronize(stream));
  rank->host->AllReduce(&meet, 1, Reduce::kMaxI64);
  WEFT_CUDA_CHECK(cudaEventRecord(events[0], stream));
  for (size_t i = 1; i < events.size(); ++i) {
    WEFT_CUDA_CHECK(cudaGraphLaunch(exec, stream));
    WEFT_CUDA_CHECK(cudaEventRecord(events[i], stream));
  }
  WEFT_CUDA_CHECK(cudaStreamSynchronize(stream));
  std::vector<float> ms(kLaunches);
  for (size_t i = 0; i < ms.size(); ++i) {
    WEFT_CUDA_CHECK(cudaEventElapsedTime(&ms[i], events[i], events[i + 1]));
  }
  for (cudaEvent_t event : events) cudaEventDestroy(event);
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  std::nth_element(ms.begin(), ms.begin() + kLaunches / 2, ms.end());
  auto nanoseconds = static_cast<int64_t>(ms[kLaunches / 2] * 1e6 / calls);
  rank->host->AllReduce(&nanoseconds, 1, Reduce::kMaxI64);
  return static_cast<double>(nanoseconds) * 1e-3;
}

}  // namespace weft::bench
