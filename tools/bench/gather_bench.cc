// weft-bench-gather: what the exchanges of a decode layer cost inside a CUDA graph, one GPU a rank.
// Each is checked first. With windows: on memory that the ranks registered with one another.
#include <CLI/CLI.hpp>
#include <cstring>
#include <vector>

#include "engine/comm/device_communicator.h"
#include "kernels/cuda/check.h"
#include "tools/bench/ranks.h"
#include "tools/bench/report.h"
#if WEFT_NCCL
#include "engine/comm/nccl_communicator.h"
#endif

namespace {

using namespace weft;
using bench::Printed;
using bench::Rank;

constexpr int kCalls = 32;  // in a graph
constexpr size_t kArea = size_t{4} << 20;

// Byte i of what a rank sends.
uint8_t Mark(int rank, size_t i) { return static_cast<uint8_t>(rank * 61 + i * 7 + i / 251); }

struct Buffers {
  const char* kind;
  uint8_t* send;
  uint8_t* recv;
};

std::vector<Buffers> MakeBuffers(Rank* rank) {
  const auto ranks = static_cast<size_t>(rank->ranks);
  std::vector<Buffers> all;
  void* plain = nullptr;
  WEFT_CUDA_CHECK(cudaMalloc(&plain, kArea * (ranks + 1)));
  all.push_back({"plain", static_cast<uint8_t*>(plain), static_cast<uint8_t*>(plain) + kArea});
#if WEFT_NCCL
  if (auto* nccl = dynamic_cast<NcclCommunicator*>(rank->comm)) {
    auto* window = static_cast<uint8_t*>(nccl->AllocateWindow(kArea * (ranks + 1)));
    all.push_back({"window", window, window + kArea});
  }
#endif
  return all;
}

void Expect(bool ok, const std::string& what) {
  if (!ok) throw std::runtime_error("wrong result of " + what);
}

class Bench {
 public:
  Bench(Rank* rank, bench::Report* report) : rank_(*rank), report_(report) {}

  void AllGather(const Buffers& b, const std::vector<size_t>& bytes, const std::string& what) {
    const auto run = [&](int) { rank_.comm->AllGather(b.send, b.recv, bytes); };
    size_t total = 0;
    for (size_t n : bytes) total += n;
    Set(b, bytes[static_cast<size_t>(rank_.rank)], total);
    run(0);
    const std::vector<uint8_t> got = Get(b.recv, total);
    size_t at = 0;
    for (int r = 0; r < rank_.ranks; ++r) {
      const size_t n = bytes[static_cast<size_t>(r)];
      for (size_t i = 0; i < n; ++i) Expect(got[at + i] == Mark(r, i), what);
      at += n;
    }
    Time(what, b.kind, bytes[0], total, run);
  }

  void AllToAll(const Buffers& b, size_t bytes) {
    const std::vector<size_t> blocks(static_cast<size_t>(rank_.ranks), bytes);
    const size_t total = bytes * blocks.size();
    const auto run = [&](int) { rank_.comm->AllToAll(b.send, blocks, b.recv, blocks); };
    Set(b, total, total);
    run(0);
    const std::vector<uint8_t> got = Get(b.recv, total);
    for (size_t i = 0; i < total; ++i) {
      const size_t at = static_cast<size_t>(rank_.rank) * bytes + i % bytes;
      Expect(got[i] == Mark(static_cast<int>(i / bytes), at), "all_to_all");
    }
    Time("all_to_all", b.kind, bytes, total, run);
  }

  void AllReduce(const Buffers& b, size_t bytes) {
    auto* data = reinterpret_cast<float*>(b.send);
    const size_t n = bytes / 4;
    const auto run = [&](int) { rank_.comm->AllReduce(data, n, Reduce::kSumF32); };
    const std::vector<float> ones(n, static_cast<float>(rank_.rank + 1));
    WEFT_CUDA_CHECK(cudaMemcpy(data, ones.data(), bytes, cudaMemcpyHostToDevice));
    run(0);
    const std::vector<uint8_t> got = Get(b.send, bytes);
    const auto sum = static_cast<float>(rank_.ranks * (rank_.ranks + 1) / 2);
    for (size_t i = 0; i < n; ++i) {
      float value;
      std::memcpy(&value, got.data() + 4 * i, 4);
      Expect(value == sum, "all_reduce");
    }
    WEFT_CUDA_CHECK(cudaMemset(data, 0, bytes));  // repeated sums must not overflow
    Time("all_reduce fp32", b.kind, bytes, bytes, run);
  }

 private:
  void Set(const Buffers& b, size_t bytes, size_t received) {
    std::vector<uint8_t> own(bytes);
    for (size_t i = 0; i < bytes; ++i) own[i] = Mark(rank_.rank, i);
    WEFT_CUDA_CHECK(cudaMemcpy(b.send, own.data(), bytes, cudaMemcpyHostToDevice));
    WEFT_CUDA_CHECK(cudaMemset(b.recv, 0, received));
    WEFT_CUDA_CHECK(cudaDeviceSynchronize());
  }
  std::vector<uint8_t> Get(const uint8_t* from, size_t bytes) {
    std::vector<uint8_t> host(bytes);
    WEFT_CUDA_CHECK(cudaStreamSynchronize(rank_.context->stream()));
    WEFT_CUDA_CHECK(cudaMemcpy(host.data(), from, bytes, cudaMemcpyDeviceToHost));
    return host;
  }
  void Time(const std::string& what, const char* kind, size_t bytes, size_t received,
            const std::function<void(int)>& run) {
    const double us = bench::GraphMicroseconds(&rank_, kCalls, run);
    if (rank_.rank != 0) return;
    report_->Add(Printed("%-24s %-7s %9zu B a rank  %8.2f us  %8.2f GB/s", what.c_str(), kind,
                         bytes, us, static_cast<double>(received) / us * 1e-3),
                 {{"operation", what},
                  {"memory", kind},
                  {"ranks", rank_.ranks},
                  {"bytes_per_rank", bytes},
                  {"us", us}});
  }

  Rank& rank_;
  bench::Report* report_;
};

void Run(Rank* rank, bench::Report* report) {
  Bench bench(rank, report);
  const auto ranks = static_cast<size_t>(rank->ranks);
  for (const Buffers& b : MakeBuffers(rank)) {
    for (const size_t bytes : {8, 1200, 2400, 4336, 8192, 16384, 65536, 1 << 20}) {
      bench.AllGather(b, std::vector<size_t>(ranks, bytes), "all_gather");
    }
    // Latent rows of a union of 1083 a rank, bf16.
    bench.AllGather(b, std::vector<size_t>(ranks, size_t{1083} * 1152), "all_gather rows");
    std::vector<size_t> uneven(ranks, 16384);
    uneven.back() -= 1024;
    bench.AllGather(b, uneven, "all_gather uneven");
    for (const size_t bytes : {4096, 131072}) bench.AllToAll(b, bytes);
    for (const size_t bytes : {4096, 28672, 262144}) bench.AllReduce(b, bytes);
  }
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Times the exchanges of a decode layer between GPUs, in CUDA graphs"};
  int ranks = 0;
  std::string json;
  app.add_option("--ranks", ranks, "GPUs to use; 0: all")->check(CLI::Range(0, 1024));
  app.add_option("--json", json, "also write the figures to this file");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  const int gpus = bench::Gpus();
  if (ranks == 0) ranks = gpus;
  if (ranks < 2 || ranks > gpus || !HaveNccl()) {
    std::fprintf(stderr, "needs NCCL and at least two GPUs; NCCL: %s, GPUs: %d, --ranks %d\n",
                 HaveNccl() ? "yes" : "no", gpus, ranks);
    return 77;
  }
  try {
    bench::Report report(json);
    bench::OnRanks(ranks, /*peer_access=*/false, [&](Rank& rank) { Run(&rank, &report); });
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "weft-bench-gather: %s\n", error.what());
    return 1;
  }
}
