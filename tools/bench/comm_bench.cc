// weft-bench-comm, under mpirun: what a collective costs between these ranks. Each operation is
// checked before it is timed. With --idle: the CPU time of ranks that wait in poll().
#include <poll.h>
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "engine/comm/mpi_session.h"

namespace {

using Clock = std::chrono::steady_clock;

// A byte that tells rank and place, so that a block in the wrong place is seen.
uint8_t Mark(int rank, size_t i) { return static_cast<uint8_t>(rank * 61 + i * 7 + i / 251); }

void Expect(bool ok, const std::string& what) {
  if (!ok) throw weft::CommError("wrong result of " + what);
}

class Bench {
 public:
  Bench(weft::Communicator* comm, int repeats) : comm_(*comm), repeats_(repeats) {}

  void AllGather(size_t bytes) {
    const size_t ranks = static_cast<size_t>(comm_.size());
    std::vector<uint8_t> recv(bytes * ranks);
    uint8_t* own = recv.data() + bytes * static_cast<size_t>(comm_.rank());
    for (size_t i = 0; i < bytes; ++i) own[i] = Mark(comm_.rank(), i);
    const auto run = [&] { comm_.AllGather(own, recv.data(), bytes); };
    run();
    for (size_t r = 0; r < ranks; ++r) {
      for (size_t i = 0; i < bytes; ++i) {
        Expect(recv[r * bytes + i] == Mark(static_cast<int>(r), i), "AllGather");
      }
    }
    Time("AllGather", bytes, run);
  }

  void AllReduce(size_t bytes) {
    std::vector<float> data(bytes / sizeof(float));
    for (size_t i = 0; i < data.size(); ++i) data[i] = Share(comm_.rank(), i);
    comm_.AllReduce(data.data(), data.size(), weft::Reduce::kSumF32);
    for (size_t i = 0; i < data.size(); ++i) {
      float sum = Share(0, i);
      for (int r = 1; r < comm_.size(); ++r) sum += Share(r, i);
      Expect(data[i] == sum, "AllReduce");
    }
    std::fill(data.begin(), data.end(), 0.0f);  // repeated sums must not overflow
    Time("AllReduce", bytes,
         [&] { comm_.AllReduce(data.data(), data.size(), weft::Reduce::kSumF32); });
  }

  void Broadcast(size_t bytes) {
    const int root = comm_.size() - 1;
    std::vector<uint8_t> data(bytes);
    for (size_t i = 0; i < bytes && comm_.rank() == root; ++i) data[i] = Mark(root, i);
    const auto run = [&] { comm_.Broadcast(data.data(), bytes, root); };
    run();
    for (size_t i = 0; i < bytes; ++i) Expect(data[i] == Mark(root, i), "Broadcast");
    Time("Broadcast", bytes, run);
  }

 private:
  // Its sum depends on the order of the ranks.
  static float Share(int rank, size_t i) {
    return (rank % 2 == 0 ? 1e7f : -1e7f) + 0.37f * static_cast<float>(rank) +
           static_cast<float>(i % 97);
  }

  void Time(const char* name, size_t bytes, const std::function<void()>& run) {
    for (int i = 0; i < repeats_ / 10; ++i) run();
    std::vector<double> us;
    for (int i = 0; i < repeats_; ++i) {
      const auto start = Clock::now();
      run();
      us.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
    }
    std::sort(us.begin(), us.end());
    if (comm_.rank() != 0) return;
    std::printf("%-10s %8zu B  min %9.1f  median %9.1f  p90 %9.1f us\n", name, bytes, us[0],
                us[us.size() / 2], us[us.size() * 9 / 10]);
    std::fflush(stdout);
  }

  weft::Communicator& comm_;
  const int repeats_;
};

double CpuSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

void Idle(int rank, int seconds) {
  const double before = CpuSeconds();
  poll(nullptr, 0, seconds * 1000);
  std::printf("rank %d: %.4f s of CPU in %d s of poll()\n", rank, CpuSeconds() - before, seconds);
}

int Run(weft::MpiSession* session, const std::string& transport, int repeats, int idle) {
  using weft::Transport;
  const Transport kind = transport == "shared" ? Transport::kShared
                         : transport == "mpi"  ? Transport::kMpi
                                               : Transport::kAuto;
  std::unique_ptr<weft::Communicator> comm = session->MakeCommunicator(kind);
  if (idle > 0) {
    Idle(session->rank(), idle);
    return 0;
  }
  if (session->rank() == 0) {
    std::printf("%d ranks, transport %s, %d repeats; bytes are per rank\n", session->size(),
                transport.c_str(), repeats);
  }
  Bench bench(comm.get(), repeats);
  const std::vector<size_t> sizes = {1 << 10, 8 << 10, 64 << 10, 1 << 20};
  for (size_t bytes : sizes) bench.AllGather(bytes);
  for (size_t bytes : sizes) bench.AllReduce(bytes);
  for (size_t bytes : sizes) bench.Broadcast(bytes);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Times the collectives of the ranks that mpirun started"};
  std::string transport = "auto";
  int repeats = 300;
  int idle = 0;
  app.add_option("--transport", transport, "auto, shared or mpi")
      ->check(CLI::IsMember({"auto", "shared", "mpi"}))
      ->capture_default_str();
  app.add_option("--repeats", repeats, "timed calls of each size")
      ->check(CLI::Range(10, 1000000))
      ->capture_default_str();
  app.add_option("--idle", idle, "instead: sit in poll() for so many seconds, print the CPU used");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  try {
    weft::MpiSession session(&argc, &argv);
    return Run(&session, transport, repeats, idle);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "weft-bench-comm: %s\n", e.what());
    return 1;
  }
}
