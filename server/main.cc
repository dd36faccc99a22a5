// weft-server: the front end of an engine, which it starts itself or attaches to.
#include <fcntl.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <iostream>

#include "server/config/logging.h"
#include "server/config/options.h"
#include "server/serve/app.h"

namespace weft::server {
namespace {

using std::chrono::duration;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

// A closed standard stream's number would go to a socket of ours, and what is printed with it.
void KeepStandardStreams() {
  int fd = open("/dev/null", O_RDWR);
  while (fd >= 0 && fd <= 2) fd = open("/dev/null", O_RDWR);
  if (fd > 2) close(fd);
}

// A connection is a file. More than this many are nobody's, and programs below us that close every
// number there may be take longer the more there are.
constexpr rlim_t kMostFiles = 65536;

rlim_t RaiseFileLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  const rlim_t wanted = std::min(limit.rlim_max, kMostFiles);
  if (limit.rlim_cur < wanted) {
    limit.rlim_cur = wanted;
    setrlimit(RLIMIT_NOFILE, &limit);
  }
  return limit.rlim_cur;
}

// Blocked in every thread, so that they come here and nowhere else.
sigset_t BlockSignals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  // The terminal went; under nohup it may.
  struct sigaction hangup;
  sigaction(SIGHUP, nullptr, &hangup);
  if (hangup.sa_handler != SIG_IGN) sigaddset(&set, SIGHUP);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  signal(SIGPIPE, SIG_IGN);
  return set;
}

// A signal that came within the time, or 0.
int WaitForSignal(const sigset_t& set, milliseconds time) {
  const timespec limit = {time.count() / 1000, (time.count() % 1000) * 1000000};
  const int signal = sigtimedwait(&set, nullptr, &limit);
  return signal > 0 ? signal : 0;
}

void Drain(App* app, const sigset_t& set, double timeout_seconds) {
  app->BeginDrain();
  spdlog::info("draining: {} requests run, and get {} s; a second signal stops at once",
               app->running(), timeout_seconds);
  const auto end = steady_clock::now() + duration<double>(timeout_seconds);
  while (!app->WaitDrained(milliseconds(0))) {
    if (WaitForSignal(set, milliseconds(20)) != 0) {
      spdlog::warn("stopping at once: {} requests are cut off", app->running());
      return;
    }
    if (steady_clock::now() >= end) {
      spdlog::warn("the drain timeout is over: {} requests are cut off", app->running());
      return;
    }
  }
}

int Serve(const Options& options, const sigset_t& set) {
  App app(options);
  std::string error;
  if (!app.Open(&error)) {
    spdlog::error("{}", error);
    return 1;
  }
  while (true) {
    if (const int signal = WaitForSignal(set, milliseconds(100)); signal != 0) {
      Drain(&app, set, options.drain_timeout_seconds);
      app.Stop();
      spdlog::info("stopped");
      return 0;
    }
    if (const auto failure = app.StartFailure()) {
      spdlog::error("cannot start: {}", *failure);
      return 1;
    }
  }
}

int Main(int argc, char** argv) {
  KeepStandardStreams();
  const sigset_t set = BlockSignals();
  // When a rank dies Open MPI gives the others 2 s to react, in which every client waits. They have
  // nothing to save. Users may set another time.
  setenv("OMPI_MCA_odls_base_sigkill_timeout", "0", 0);
  const ParseResult parsed = ParseOptions(argc, argv);
  if (!parsed.run) {
    (parsed.exit_code == 0 ? std::cout : std::cerr) << parsed.message;
    return parsed.exit_code;
  }
  const Options& options = parsed.options;
  if (options.print_config) {
    std::cout << options.effective << "\n";
    return 0;
  }
  SetUpLogging(options.log_level, options.log_format);
  spdlog::info("weft-server {}: {}", WEFT_VERSION, options.changed);
  spdlog::info("at most {} open files, connections among them (ulimit -Hn)", RaiseFileLimit());
  try {
    return Serve(options, set);
  } catch (const std::exception& e) {
    spdlog::error("cannot start: {}", e.what());
    return 1;
  }
}

}  // namespace
}  // namespace weft::server

int main(int argc, char** argv) { return weft::server::Main(argc, argv); }
