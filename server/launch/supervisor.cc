#include "server/launch/supervisor.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstdio>

#include "server/backend/engine_link.h"
#include "server/launch/engine_command.h"
#include "server/launch/engine_log.h"

namespace weft::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kPoll(50);
constexpr milliseconds kStopGrace(8000);  // a normal stop of all ranks takes a second or two
constexpr milliseconds kFirstBackoff(500);
constexpr milliseconds kLongestBackoff(30000);
// An engine that runs but no longer answers is ended after this.
constexpr milliseconds kSilenceLimit(30000);

std::string Join(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

}  // namespace

Supervisor::Supervisor(const Options& options, EngineLink* link)
    : options_(options), link_(link), thread_([this] { Run(); }) {}

Supervisor::~Supervisor() { Stop(); }

std::optional<std::string> Supervisor::StartFailure() const {
  const std::lock_guard lock(mutex_);
  return start_failure_;
}

void Supervisor::Stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

bool Supervisor::stopping() const {
  const std::lock_guard lock(mutex_);
  return stopping_;
}

bool Supervisor::PauseFor(milliseconds time) {
  std::unique_lock lock(mutex_);
  return !changed_.wait_for(lock, time, [this] { return stopping_; });
}

void Supervisor::Run() {
  milliseconds backoff = kFirstBackoff;
  bool ever_ready = false;
  while (!stopping()) {
    std::string ending;
    const bool ready = RunEngine(&ending);
    ever_ready |= ready;
    if (stopping()) return;
    link_->Disconnect(ending);
    if (!ever_ready) {
      const std::lock_guard lock(mutex_);
      start_failure_ = ending;
      return;
    }
    backoff = ready ? kFirstBackoff : std::min(2 * backoff, kLongestBackoff);
    spdlog::error("{}; starting another in {} ms", ending, backoff.count());
    if (!PauseFor(backoff)) return;
  }
}

bool Supervisor::RunEngine(std::string* ending) {
  if (*ending = HostFileMistake(options_); !ending->empty()) return false;
  const std::string mpirun = FindMpirun(options_, ending);
  const std::string binary = mpirun.empty() ? "" : FindEngineBinary(options_, ending);
  const int port = binary.empty() ? 0 : FindFreePort(ending);
  if (port == 0) return false;
  const std::vector<std::string> argv = EngineCommand(options_, mpirun, binary, port);
  spdlog::info("starting the engine: {}", Join(argv));
  EngineLog log(options_.log_format == "json");
  const std::unique_ptr<ChildProcess> child =
      ChildProcess::Start(argv, kStopGrace, ending, [&log](std::string_view line) {
        const std::string text = log.Take(line);
        std::fwrite(text.data(), 1, text.size(), stderr);  // in one piece: it has no buffer
      });
  if (child == nullptr) return false;
  link_->Connect("127.0.0.1:" + std::to_string(port));
  const bool ready = Watch(child.get(), ending);
  child->Stop();
  if (!log.reason().empty()) *ending += ": " + log.reason();
  return ready;
}

bool Supervisor::Watch(ChildProcess* child, std::string* ending) {
  bool was_ready = false;
  steady_clock::time_point heard = steady_clock::now();
  while (!stopping()) {
    if (const auto exit = child->WaitFor(kPoll)) {
      was_ready = link_->state().was_ready;  // it may have been between two looks
      *ending =
          std::string("the engine ") + exit->ToString() + (was_ready ? "" : " before it was ready");
      return was_ready;
    }
    // An engine that answers is alive, also in a slow step: its own --step-timeout ends a hanging
    // one.
    const EngineLink::State engine = link_->state();
    was_ready |= engine.was_ready;
    heard = std::max(heard, engine.asked);
    if (was_ready && steady_clock::now() - heard > kSilenceLimit) {
      *ending = "the engine runs but did not answer for " +
                std::to_string(kSilenceLimit.count() / 1000) + " s, so it was ended";
      return was_ready;
    }
  }
  *ending = "the engine was stopped";
  return was_ready;
}

}  // namespace weft::server
