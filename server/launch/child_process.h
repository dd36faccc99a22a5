// One child process that cannot outlive us, with all it starts itself.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace weft::server {

class ChildProcess {
 public:
  // How it ended, in words: "exited with code 3", "was killed by signal 9 (Killed)".
  struct Exit {
    int code = 0;  // when signal is 0
    int signal = 0;
    std::string ToString() const;
  };

  // Gets each line that it and its descendants print, without the newline, on a thread of its own;
  // all of them before WaitFor() and Stop() tell the end.
  using Listener = std::function<void(std::string_view line)>;

  // Starts argv[0], looked up in PATH, below a guardian. Its stdout is our stderr, so that only we
  // write to stdout; or both go to `listener`. `grace` is its time to end in once it was asked to.
  // Returns null with *error set when it cannot be run.
  static std::unique_ptr<ChildProcess> Start(const std::vector<std::string>& argv,
                                             std::chrono::milliseconds grace, std::string* error,
                                             Listener listener = nullptr);
  ~ChildProcess();  // Stop()

  pid_t pid() const { return guardian_; }  // the guardian's; the process is its child

  // Waits for its end, but no longer than this.
  std::optional<Exit> WaitFor(std::chrono::milliseconds time);

  // SIGTERM; after the grace, SIGKILL to it and every descendant, whatever groups they are in:
  // mpirun gives each rank one. Returns when all are gone.
  void Stop();

 private:
  ChildProcess() = default;
  void Wait(int output_fd, const Listener& listener);  // of waiter_

  pid_t guardian_ = 0;
  int life_fd_ = -1;  // the guardian stops everything when this closes; the kernel does it for us
  std::thread waiter_;
  std::mutex mutex_;
  std::condition_variable ended_;
  std::optional<Exit> exit_;
};

}  // namespace weft::server
