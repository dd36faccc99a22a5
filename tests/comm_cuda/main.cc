// weft-cuda-comm-check [part of a name]: the collectives on device memory, ranks as threads of this
// process: staged on one GPU, NCCL on as many as there are. Exit status 77 without a GPU.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <thread>

#include "engine/comm/device_communicator.h"
#include "tests/comm/collective_checks.h"
#include "tests/comm_cuda/through_device.h"

namespace {

using namespace std::chrono_literals;
using weft::Communicator;
using weft::Reduce;
using weft_test::Expect;
using Clock = std::chrono::steady_clock;

struct Rank {
  Communicator* host;
  Communicator* comm;  // on device memory
  cudaStream_t stream;
};

// What was captured on a stream; destroyed before its communicator, whatever happens.
class Graph {
 public:
  explicit Graph(cudaStream_t stream) {
    cudaGraph_t graph = nullptr;
    WEFT_CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
    WEFT_CUDA_CHECK(cudaGraphInstantiate(&exec_, graph, 0));
    WEFT_CUDA_CHECK(cudaGraphDestroy(graph));
  }
  ~Graph() { cudaGraphExecDestroy(exec_); }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  void Launch(cudaStream_t stream) const { WEFT_CUDA_CHECK(cudaGraphLaunch(exec_, stream)); }

 private:
  cudaGraphExec_t exec_ = nullptr;
};

struct Setup {
  int ranks = 2;
  bool staged = false;
  bool ordered = false;
  std::vector<std::string> failures;  // what on_failure was told, by rank
  bool peer_access = false;
};

std::vector<std::string> Names(int ranks) {
  std::vector<std::string> names;
  for (int r = 0; r < ranks; ++r) names.push_back("rank " + std::to_string(r) + " (GPU)");
  return names;
}

// Runs `body` on every rank; what each threw, by rank.
std::vector<std::string> OnRanks(Setup* setup, const std::function<void(const Rank&)>& body) {
  const auto hosts = weft::MakeThreadCommunicators(setup->ranks);
  std::vector<std::string> thrown(hosts.size());
  setup->failures.assign(hosts.size(), "");
  const bool nccl = !setup->staged && setup->ranks > 1;
  const std::string id = nccl ? weft::NewNcclId() : "";
  std::vector<std::thread> threads;
  for (size_t r = 0; r < hosts.size(); ++r) {
    threads.emplace_back([&, r] {
      cudaStream_t stream = nullptr;
      try {
        weft::DeviceCommOptions options;
        options.device = setup->staged ? 0 : static_cast<int>(r);
        WEFT_CUDA_CHECK(cudaSetDevice(options.device));
        WEFT_CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        options.stream = stream;
        options.staged = setup->staged;
        options.nccl_id = id;
        options.ranks = Names(setup->ranks);
        options.init_timeout = 60s;
        options.ordered_sums = setup->ordered;
        options.peer_access = setup->peer_access;
        options.on_failure = [&, r](const std::string& why) { setup->failures[r] = why; };
        const auto comm = weft::MakeDeviceCommunicator(options, hosts[r].get());
        comm->SetDeadline(60s);
        body({hosts[r].get(), comm.get(), stream});
      } catch (const std::exception& e) {
        thrown[r] = e.what();
      }
      if (stream != nullptr) cudaStreamDestroy(stream);
    });
  }
  for (std::thread& t : threads) t.join();
  return thrown;
}

void ExpectQuiet(const std::vector<std::string>& thrown) {
  for (const std::string& text : thrown) Expect(text.empty(), text);
}

void Collectives(Setup setup) {
  ExpectQuiet(OnRanks(&setup, [](const Rank& rank) {
    weft_test::ThroughDevice host(rank.comm, rank.stream);
    weft_test::CheckCollectives(host);
  }));
}

template <typename T>
T* DeviceArray(size_t count) {
  void* data = nullptr;
  WEFT_CUDA_CHECK(cudaMalloc(&data, count * sizeof(T)));
  return static_cast<T*>(data);
}

// A graph with every kind of collective, replayed with new inputs.
void InGraph(Setup setup) {
  ExpectQuiet(OnRanks(&setup, [](const Rank& rank) {
    const int n = rank.comm->size(), me = rank.comm->rank();
    constexpr size_t kCount = 1000;
    int32_t* data = DeviceArray<int32_t>(kCount * static_cast<size_t>(n) * 2);
    int32_t* gathered = data + kCount * static_cast<size_t>(n);
    WEFT_CUDA_CHECK(cudaStreamBeginCapture(rank.stream, cudaStreamCaptureModeThreadLocal));
    rank.comm->AllReduce(data, kCount, Reduce::kSumI32);
    rank.comm->GroupBegin();
    rank.comm->AllGather(data, gathered, kCount * 2);  // halves
    rank.comm->Broadcast(data + 500, 100, n - 1);
    rank.comm->GroupEnd();
    const std::vector<size_t> blocks(static_cast<size_t>(n), 64);
    rank.comm->AllToAll(gathered, blocks, data, blocks);
    const Graph graph(rank.stream);
    for (int step = 0; step < 20; ++step) {
      const std::vector<int32_t> in(kCount, step + me);
      std::vector<int32_t> out(kCount);
      WEFT_CUDA_CHECK(
          cudaMemcpyAsync(data, in.data(), kCount * 4, cudaMemcpyHostToDevice, rank.stream));
      graph.Launch(rank.stream);
      rank.comm->Launched("graph of the test");
      WEFT_CUDA_CHECK(
          cudaMemcpyAsync(out.data(), data, kCount * 4, cudaMemcpyDeviceToHost, rank.stream));
      // An eager collective between graphs, without waiting for them.
      rank.comm->AllReduce(gathered, 10, Reduce::kSumI32);
      WEFT_CUDA_CHECK(cudaStreamSynchronize(rank.stream));
      const int32_t sum = n * step + n * (n - 1) / 2;
      Expect(out == std::vector<int32_t>(kCount, sum), "collectives in a graph");
    }
    WEFT_CUDA_CHECK(cudaFree(data));
  }));
}

void StagedRefusesCapture() {
  Setup setup{2, true, false, {}};
  const auto thrown = OnRanks(&setup, [](const Rank& rank) {
    int32_t* data = DeviceArray<int32_t>(8);
    WEFT_CUDA_CHECK(cudaStreamBeginCapture(rank.stream, cudaStreamCaptureModeThreadLocal));
    std::string text;
    try {
      rank.comm->AllReduce(data, 8, Reduce::kSumI32);
    } catch (const weft::CommError& error) {
      text = error.what();
    }
    cudaGraph_t graph = nullptr;
    cudaStreamEndCapture(rank.stream, &graph);
    cudaFree(data);
    Expect(text.find("cannot be part of a CUDA graph") != std::string::npos, text);
  });
  ExpectQuiet(thrown);
}

// The last rank does not come: the others hear of it by their watchdogs, and end.
void LateRank() {
  Setup setup{2, false, false, {}};
  const auto start = Clock::now();
  const auto thrown = OnRanks(&setup, [](const Rank& rank) {
    rank.comm->SetDeadline(1s);
    int32_t* data = DeviceArray<int32_t>(8);
    if (rank.comm->rank() == 1) {
      std::this_thread::sleep_for(3s);
      rank.comm->AllReduce(data, 8, Reduce::kSumI32);
      return;
    }
    rank.comm->AllReduce(data, 8, Reduce::kSumI32);
    cudaStreamSynchronize(rank.stream);
    rank.comm->AllReduce(data, 8, Reduce::kSumI32);
  });
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  Expect(seconds < 40, "a late rank is noticed soon, after " + std::to_string(seconds) + " s");
  for (const auto& text : {thrown[0], thrown[1], setup.failures[0], setup.failures[1]}) {
    std::printf("    said: %s\n", text.c_str());
    Expect(text.find("AllReduce (collective 1) is not done after 1") != std::string::npos, text);
  }
}

// The same with a graph.
void LateGraph() {
  Setup setup{2, false, false, {}};
  const auto thrown = OnRanks(&setup, [](const Rank& rank) {
    rank.comm->SetDeadline(1s);
    int32_t* data = DeviceArray<int32_t>(8);
    WEFT_CUDA_CHECK(cudaStreamBeginCapture(rank.stream, cudaStreamCaptureModeThreadLocal));
    rank.comm->AllReduce(data, 8, Reduce::kSumI32);
    const Graph graph(rank.stream);
    if (rank.comm->rank() == 1) std::this_thread::sleep_for(3s);
    if (rank.comm->rank() == 0) graph.Launch(rank.stream);
    rank.comm->Launched("decode graph");
    cudaStreamSynchronize(rank.stream);
    rank.comm->Launched("decode graph");
  });
  for (const auto& text : {thrown[0], thrown[1], setup.failures[0]}) {
    std::printf("    said: %s\n", text.c_str());
    Expect(text.find("decode graph") != std::string::npos, text);
  }
}

void AbortFromOutside() {
  Setup setup{2, false, false, {}};
  const auto thrown = OnRanks(&setup, [](const Rank& rank) {
    int32_t* data = DeviceArray<int32_t>(8);
    std::thread other;
    if (rank.comm->rank() == 0) {
      other = std::thread([&] {
        std::this_thread::sleep_for(300ms);
        rank.comm->Abort("rank 0 is out of memory");
      });
      rank.comm->AllReduce(data, 8, Reduce::kSumI32);  // rank 1 never comes
    }
    if (rank.comm->rank() == 1) std::this_thread::sleep_for(1s);
    cudaStreamSynchronize(rank.stream);
    if (other.joinable()) other.join();
    Expect(*rank.comm->AbortWord() != 0, "kernels that wait for another rank see the abort");
    rank.comm->AllReduce(data, 8, Reduce::kSumI32);
  });
  for (const std::string& text : thrown) {
    Expect(text.find("rank 0 is out of memory") != std::string::npos, text);
  }
}

// What each rank writes into its own memory and into the other's, both read.
void SharedMemory() {
  Setup setup{2, false, false, {}};
  setup.peer_access = true;
  ExpectQuiet(OnRanks(&setup, [](const Rank& rank) {
    constexpr size_t kBytes = 3000000;
    const auto me = static_cast<size_t>(rank.comm->rank()), other = 1 - me;
    int64_t meet = 0;
    Expect(!rank.comm->SharesMemory(), "nothing is shared before it is asked for");
    for (const size_t at : {size_t{0}, kBytes - 4}) {  // two pieces, which do not overlap
      const std::vector<void*> memory = rank.comm->AllocateShared(kBytes);
      Expect(memory.size() == 2 && rank.comm->SharesMemory(), "the GPUs reach each other");
      if (memory.size() != 2) return;
      const auto word = [&](size_t of, size_t offset) {
        return static_cast<char*>(memory[of]) + offset;
      };
      std::vector<char> bytes(kBytes, 1);
      WEFT_CUDA_CHECK(cudaMemcpy(bytes.data(), memory[other], kBytes, cudaMemcpyDefault));
      Expect(std::all_of(bytes.begin(), bytes.end(), [](char c) { return c == 0; }), "zeroed");
      rank.host->AllReduce(&meet, 1, Reduce::kSumI64);
      const auto mine = static_cast<int32_t>(100 + me);
      WEFT_CUDA_CHECK(cudaMemcpy(word(me, at), &mine, 4, cudaMemcpyDefault));
      WEFT_CUDA_CHECK(cudaMemcpy(word(other, 1024), &mine, 4, cudaMemcpyDefault));
      WEFT_CUDA_CHECK(cudaDeviceSynchronize());
      rank.host->AllReduce(&meet, 1, Reduce::kSumI64);
      int32_t theirs = 0, left_here = 0;
      WEFT_CUDA_CHECK(cudaMemcpy(&theirs, word(other, at), 4, cudaMemcpyDefault));
      WEFT_CUDA_CHECK(cudaMemcpy(&left_here, word(me, 1024), 4, cudaMemcpyDefault));
      Expect(theirs == static_cast<int32_t>(100 + other), "what the other rank wrote at its own");
      Expect(left_here == static_cast<int32_t>(100 + other), "what the other rank wrote here");
      rank.host->AllReduce(&meet, 1, Reduce::kSumI64);
    }
  }));
}

void NoSharedMemory() {
  Setup setup{2, false, false, {}};
  ExpectQuiet(OnRanks(&setup, [](const Rank& rank) {
    Expect(rank.comm->AllocateShared(4096).empty() && !rank.comm->SharesMemory(),
           "nobody asked for peer access");
  }));
}

// NCCL's own words on two ranks of one GPU, on both ranks, and soon.
void SameGpu() {
  const auto hosts = weft::MakeThreadCommunicators(2);
  const std::string id = weft::NewNcclId();
  std::vector<std::string> thrown(2);
  std::vector<std::thread> threads;
  for (size_t r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      weft::DeviceCommOptions options;
      options.nccl_id = id;
      options.ranks = Names(2);
      options.init_timeout = 20s;
      try {
        weft::MakeDeviceCommunicator(options, hosts[r].get());
      } catch (const std::exception& e) {
        thrown[r] = e.what();
      }
    });
  }
  for (std::thread& t : threads) t.join();
  std::printf("    said: %s\n", thrown[0].c_str());
  Expect(thrown[0] == thrown[1], "both ranks say the same");
  Expect(thrown[0].find("rank 1 (GPU): ") != std::string::npos, thrown[0]);
}

struct Case {
  const char* name;
  int gpus;
  std::function<void()> run;
};

const std::vector<Case> kCases = {
    {"alone: every collective", 1,
     [] {
       Collectives({1, false, false, {}});
     }},
    {"alone: in a graph", 1,
     [] {
       InGraph({1, false, false, {}});
     }},
    {"staged: two ranks on one GPU", 1,
     [] {
       Collectives({2, true, false, {}});
     }},
    {"staged: three ranks on one GPU", 1,
     [] {
       Collectives({3, true, false, {}});
     }},
    {"staged: no capture", 1, StagedRefusesCapture},
    {"nccl: two ranks on one GPU are refused", 1, SameGpu},
    {"nccl: every collective", 2,
     [] {
       Collectives({2, false, false, {}});
     }},
    {"nccl: every collective with ordered sums", 2,
     [] {
       Collectives({2, false, true, {}});
     }},
    {"nccl: in a graph", 2,
     [] {
       InGraph({2, false, false, {}});
     }},
    {"nccl: ordered sums of four ranks", 4,
     [] {
       Collectives({4, false, true, {}});
     }},
    {"nccl: memory that all ranks share", 2, SharedMemory},
    {"nccl: no shared memory without peer access", 2, NoSharedMemory},
    {"nccl: a late rank", 2, LateRank},
    {"nccl: a late rank behind a graph", 2, LateGraph},
    {"nccl: Abort from another thread", 2, AbortFromOutside},
};

}  // namespace

int main(int argc, char** argv) {
  const char* part = argc > 1 ? argv[1] : "";
  if (std::strcmp(part, "--help") == 0) {
    std::puts("weft-cuda-comm-check [part of a name]: the collectives on this machine's GPUs");
    return 0;
  }
  if (part[0] == '-') {
    std::fprintf(stderr, "there is no option %s (--help)\n", part);
    return 2;
  }
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("skipped: no CUDA device\n");
    return 77;
  }
  int failures = 0;
  for (const Case& test : kCases) {
    if (std::strstr(test.name, part) == nullptr) continue;
    const bool nccl = std::strncmp(test.name, "nccl", 4) == 0;
    if (test.gpus > devices || (nccl && !weft::HaveNccl())) {
      std::printf("skip  %s (needs %d GPUs%s)\n", test.name, test.gpus, nccl ? " and NCCL" : "");
      continue;
    }
    const auto start = Clock::now();
    std::string wrong;
    try {
      test.run();
    } catch (const std::exception& e) {
      wrong = e.what();
      ++failures;
    }
    const std::chrono::duration<double> took = Clock::now() - start;
    std::printf("%s  %s (%.1f s) %s\n", wrong.empty() ? "ok  " : "FAIL", test.name, took.count(),
                wrong.c_str());
    std::fflush(stdout);
  }
  std::printf("%d failures\n", failures);
  return failures == 0 ? 0 : 1;
}
