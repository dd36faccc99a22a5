#include <fcntl.h>
#include <signal.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <exception>
#include <string>
#include <thread>

#include "engine/app/check.h"
#include "engine/app/options.h"
#include "engine/app/rank.h"
#include "engine/app/signal_waiter.h"
#include "engine/comm/mpi_session.h"

namespace {

// A closed standard stream's number would go to a socket of ours, and what is printed with it.
void KeepStandardStreams() {
  int fd = open("/dev/null", O_RDWR);
  while (fd >= 0 && fd <= 2) fd = open("/dev/null", O_RDWR);
  if (fd > 2) close(fd);
}

void NameRank(const std::string& rank) {
  spdlog::set_pattern("%Y-%m-%dT%H:%M:%S.%eZ [rank " + rank + "] %l: %v",
                      spdlog::pattern_time_type::utc);
}

}  // namespace

int main(int argc, char** argv) {
  KeepStandardStreams();
  spdlog::set_default_logger(spdlog::stderr_color_mt("weft"));
  // What goes wrong before MPI runs reads as what comes later.
  if (const char* rank = std::getenv("OMPI_COMM_WORLD_RANK")) NameRank(rank);
  weft::EngineOptions options;
  int exit_code = 0;
  if (!weft::ParseOptions(argc, argv, &options, &exit_code)) return exit_code;
  if (!options.check.empty()) return weft::CheckModel(options);
  signal(SIGPIPE, SIG_IGN);
  weft::SignalWaiter signals;
  try {
    weft::MpiSession session(&argc, &argv);
    NameRank(std::to_string(session.rank()));
    try {
      weft::RunRank(options, &session, &signals);
      return 0;
    } catch (const std::exception& error) {
      // What every rank would say alike, rank 0 says first and alone: its abort ends the others.
      if (session.rank() != 0) std::this_thread::sleep_for(std::chrono::milliseconds(300));
      spdlog::error("{}", error.what());
      session.Abort(1);
    }
  } catch (const std::exception& error) {
    spdlog::error("{}", error.what());
    return 1;
  }
}
