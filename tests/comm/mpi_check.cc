// weft-mpi-check, under mpirun: the collectives between processes, and ways to fail that must end
// the job. Not Catch2: all ranks must run the same checks, and one verdict counts.
#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <thread>

#include "engine/comm/mpi_session.h"
#include "tests/comm/collective_checks.h"

namespace {

using namespace std::chrono_literals;

void CheckText(weft::MpiSession& session) {
  for (const std::string& text : {std::string("127.0.0.1:4711 abc"), std::string()}) {
    const std::string got = session.BroadcastText(session.rank() == 0 ? text : "not this");
    weft_test::Expect(got == text, "BroadcastText");
  }
}

// The last rank misbehaves; whatever happens, a rank that gets through is a failed test (exit 0).
void FailOn(const std::string& failure, weft::Communicator& comm) {
  const bool culprit = comm.rank() == comm.size() - 1;
  std::vector<float> data(100'000, 1.0f);
  const auto reduce = [&](size_t n) { comm.AllReduce(data.data(), n, weft::Reduce::kSumF32); };
  reduce(1);
  if (failure == "kill") {
    if (culprit) kill(getpid(), SIGKILL);
  } else if (failure == "abort") {
    // Rank 3 waits when another of its threads aborts: all others must hear of it.
    std::thread other([&] {
      std::this_thread::sleep_for(200ms);
      if (culprit) comm.Abort("aborted by a thread of rank 3");
    });
    other.detach();
    if (comm.rank() == 0) std::this_thread::sleep_for(1s);
  } else if (failure == "late") {
    comm.SetDeadline(300ms);
    if (culprit) std::this_thread::sleep_for(1min);
  } else if (failure == "throw") {
    if (culprit) throw std::runtime_error("rank 3 gives up outside of MPI");
  } else if (failure == "mismatch") {
    reduce(culprit ? 10 : 20);
  }
  reduce(data.size());
}

int Run(int* argc, char*** argv, const std::string& transport, const std::string& failure) {
  weft::MpiSession session(argc, argv);
  const auto kind = transport == "mpi" ? weft::Transport::kMpi : weft::Transport::kShared;
  const std::unique_ptr<weft::Communicator> comm = session.MakeCommunicator(kind);
  weft_test::Expect(comm->rank() == session.rank() && comm->size() == session.size(), "rank, size");
  if (!failure.empty()) {
    FailOn(failure, *comm);
    std::fprintf(stderr, "rank %d did not notice the failure\n", session.rank());
    return 0;
  }
  CheckText(session);
  weft_test::CheckCollectives(*comm);
  // Two communicators side by side, as a test of another subsystem may make.
  const std::unique_ptr<weft::Communicator> second = session.MakeCommunicator();
  weft_test::CheckAllGather(*second, 1000, false);
  weft_test::CheckAllGather(*comm, 1000, false);
  if (session.rank() == 0) std::printf("%d ranks over %s: ok\n", session.size(), transport.c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Checks the communicator of the ranks that mpirun started"};
  std::string transport = "shared";
  std::string failure;
  app.add_option("--transport", transport, "shared or mpi")
      ->check(CLI::IsMember({"shared", "mpi"}));
  app.add_option("--fail", failure, "kill, abort, late, throw or mismatch");
  CLI11_PARSE(app, argc, argv);
  try {
    return Run(&argc, &argv, transport, failure);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "weft-mpi-check: %s\n", e.what());
    return 1;
  }
}
