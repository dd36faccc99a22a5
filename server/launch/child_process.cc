#include "server/launch/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "server/launch/guardian.h"

namespace weft::server {
namespace {

constexpr size_t kLongestLine = 64 << 10;  // what is longer comes in parts

// Whether the child has ended; it stays to be waited for.
bool HasEnded(pid_t pid) {
  siginfo_t info{};
  return waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         info.si_pid == pid;
}

// Until the other end is closed or the child has ended: what outlives it, as a rank that hangs in
// its driver does, may hold the other end for ever.
void TellLines(pid_t child, int fd, const ChildProcess::Listener& listener) {
  constexpr int kLookMs = 200;
  std::string text;
  char buffer[4096];
  while (true) {
    const bool ended = HasEnded(child);  // looked at first: what it printed is there then
    pollfd ready{fd, POLLIN, 0};
    if (poll(&ready, 1, ended ? 0 : kLookMs) <= 0) {
      if (ended) break;
      continue;
    }
    const ssize_t size = read(fd, buffer, sizeof buffer);
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) break;
    text.append(buffer, static_cast<size_t>(size));
    size_t begin = 0;
    for (size_t end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
      listener(std::string_view(text).substr(begin, end - begin));
    }
    text.erase(0, begin);
    if (text.size() > kLongestLine) {
      listener(text);
      text.clear();
    }
  }
  if (!text.empty()) listener(text);
}

}  // namespace

std::string ChildProcess::Exit::ToString() const {
  if (signal == 0) return "exited with code " + std::to_string(code);
  return "was killed by signal " + std::to_string(signal) + " (" + strsignal(signal) + ")";
}

std::unique_ptr<ChildProcess> ChildProcess::Start(const std::vector<std::string>& argv,
                                                  std::chrono::milliseconds grace,
                                                  std::string* error, Listener listener) {
  std::vector<char*> pointers;
  for (const std::string& arg : argv) pointers.push_back(const_cast<char*>(arg.c_str()));
  pointers.push_back(nullptr);
  int life[2];
  int errors[2];
  int output[2] = {-1, -1};
  if (pipe2(life, O_CLOEXEC) != 0 || pipe2(errors, O_CLOEXEC) != 0 ||
      (listener && pipe2(output, O_CLOEXEC) != 0)) {
    *error = std::string("no pipe for a child process: ") + std::strerror(errno);
    return nullptr;
  }
  const pid_t pid = fork();
  if (pid == 0) {
    RunGuardian({pointers.data(), life[0], errors[1], output[1], static_cast<int>(grace.count())});
  }
  int code = pid < 0 ? errno : 0;
  close(life[0]);
  close(errors[1]);
  if (listener) close(output[1]);
  while (read(errors[0], &code, sizeof code) < 0 && errno == EINTR) {
  }
  close(errors[0]);
  if (code != 0) {
    close(life[1]);
    if (listener) close(output[0]);
    if (pid > 0) waitpid(pid, nullptr, 0);
    *error = "cannot run '" + argv[0] + "': " + std::strerror(code);
    return nullptr;
  }
  std::unique_ptr<ChildProcess> child(new ChildProcess);
  child->guardian_ = pid;
  child->life_fd_ = life[1];
  child->waiter_ = std::thread([process = child.get(), fd = output[0],
                                listener = std::move(listener)] { process->Wait(fd, listener); });
  return child;
}

void ChildProcess::Wait(int output_fd, const Listener& listener) {
  if (listener) {
    TellLines(guardian_, output_fd, listener);
    close(output_fd);
  }
  int status = 0;
  while (waitpid(guardian_, &status, 0) < 0 && errno == EINTR) {
  }
  const std::lock_guard lock(mutex_);
  exit_ = WIFEXITED(status) ? Exit{WEXITSTATUS(status), 0} : Exit{0, WTERMSIG(status)};
  ended_.notify_all();
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
