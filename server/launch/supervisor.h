// Keeps one engine running: starts it, watches the process, starts another when it ends.
#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "server/config/options.h"
#include "server/launch/child_process.h"

namespace weft::server {

class EngineLink;

class Supervisor {
 public:
  // `link` is told where each engine listens, and when it has ended; it must outlive this.
  Supervisor(const Options& options, EngineLink* link);
  ~Supervisor();  // Stop()

  // Set when the first engine ended before it was ready: there is no use in trying again.
  std::optional<std::string> StartFailure() const;

  // Ends the engine: SIGTERM, a time to end in, SIGKILL. Returns when all its processes are gone.
  void Stop();

 private:
  void Run();
  // One engine's life. Returns whether it was ever ready.
  bool RunEngine(std::string* ending);
  bool Watch(ChildProcess* child, std::string* ending);
  bool PauseFor(std::chrono::milliseconds time);  // false: stop instead
  bool stopping() const;

  const Options options_;
  EngineLink* const link_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  std::optional<std::string> start_failure_;
  std::thread thread_;
};

}  // namespace weft::server
