#include "server/launch/child_process.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "server/launch/guardian.h"

namespace weft::server {

std::string ChildProcess::Exit::ToString() const {
  if (signal == 0) return "exited with code " + std::to_string(code);
  return "was killed by signal " + std::to_string(signal) + " (" + strsignal(signal) + ")";
}

std::unique_ptr<ChildProcess> ChildProcess::Start(const std::vector<std::string>& argv,
                                                  std::chrono::milliseconds grace,
                                                  std::string* error) {
  std::vector<char*> pointers;
  for (const std::string& arg : argv) pointers.push_back(const_cast<char*>(arg.c_str()));
  pointers.push_back(nullptr);
  int life[2];
  int errors[2];
  if (pipe2(life, O_CLOEXEC) != 0 || pipe2(errors, O_CLOEXEC) != 0) {
    *error = std::string("no pipe for a child process: ") + std::strerror(errno);
    return nullptr;
  }
  const pid_t pid = fork();
  if (pid == 0) {
    RunGuardian({pointers.data(), life[0], errors[1], static_cast<int>(grace.count())});
  }
  int code = pid < 0 ? errno : 0;
  close(life[0]);
  close(errors[1]);
  while (read(errors[0], &code, sizeof code) < 0 && errno == EINTR) {
  }
  close(errors[0]);
  if (code != 0) {
    close(life[1]);
    if (pid > 0) waitpid(pid, nullptr, 0);
    *error = "cannot run '" + argv[0] + "': " + std::strerror(code);
    return nullptr;
  }
  std::unique_ptr<ChildProcess> child(new ChildProcess);
  child->guardian_ = pid;
  child->life_fd_ = life[1];
  child->waiter_ = std::thread([process = child.get()] {
    int status = 0;
    while (waitpid(process->guardian_, &status, 0) < 0 && errno == EINTR) {
    }
    const std::lock_guard lock(process->mutex_);
    process->exit_ = WIFEXITED(status) ? Exit{WEXITSTATUS(status), 0} : Exit{0, WTERMSIG(status)};
    process->ended_.notify_all();
  });
  return child;
}

ChildProcess::~ChildProcess() {
  Stop();
  waiter_.join();
}

std::optional<ChildProcess::Exit> ChildProcess::WaitFor(std::chrono::milliseconds time) {
  std::unique_lock lock(mutex_);
  ended_.wait_for(lock, time, [this] { return exit_.has_value(); });
  return exit_;
}

void ChildProcess::Stop() {
  std::unique_lock lock(mutex_);
  if (life_fd_ >= 0) close(life_fd_);
  life_fd_ = -1;
  ended_.wait(lock, [this] { return exit_.has_value(); });
}

}  // namespace weft::server
