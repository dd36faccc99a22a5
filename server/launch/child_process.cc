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
constexpr ssize_t kPipeHolds = 1 << 20;    // at most, by the system's default

// Closes what is not taken.
class Pipe {
 public:
  ~Pipe() {
    for (const int end : ends_) {
      if (end >= 0) close(end);
    }
  }
  bool Open() { return pipe2(ends_, O_CLOEXEC) == 0; }
  int out() const { return ends_[0]; }
  int in() const { return ends_[1]; }
  int TakeOut() { return std::exchange(ends_[0], -1); }
  int TakeIn() { return std::exchange(ends_[1], -1); }
  void CloseIn() {
    if (in() >= 0) close(TakeIn());
  }

 private:
  int ends_[2] = {-1, -1};
};

// Whether the child has ended; it stays to be waited for.
bool HasEnded(pid_t pid) {
  siginfo_t info{};
  return waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         info.si_pid == pid;
}

// Until the other end is closed or the child has ended: what outlives it, as a rank that hangs in
// its driver does, may hold the other end, and print to it, for ever.
void TellLines(pid_t child, int fd, const ChildProcess::Listener& listener) {
  constexpr int kLookMs = 200;
  std::string text;
  char buffer[4096];
  ssize_t late = 0;  // bytes read since the end
  while (late < kPipeHolds) {
    const bool ended = HasEnded(child);  // looked at first: what it printed is there then
    pollfd ready{fd, POLLIN, 0};
    const int readable = poll(&ready, 1, ended ? 0 : kLookMs);
    if (readable == 0 && ended) break;
    if (readable <= 0) continue;  // nothing yet, or a signal
    const ssize_t size = read(fd, buffer, sizeof buffer);
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) break;
    if (ended) late += size;
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
  Pipe life, errors, output;
  if (!life.Open() || !errors.Open() || (listener && !output.Open())) {
    *error = std::string("no pipe for a child process: ") + std::strerror(errno);
    return nullptr;
  }
  const pid_t pid = fork();
  if (pid == 0) {
    RunGuardian(
        {pointers.data(), life.out(), errors.in(), output.in(), static_cast<int>(grace.count())});
  }
  int code = pid < 0 ? errno : 0;
  errors.CloseIn();
  output.CloseIn();
  while (read(errors.out(), &code, sizeof code) < 0 && errno == EINTR) {
  }
  if (code != 0) {
    life.CloseIn();  // the guardian ends
    if (pid > 0) waitpid(pid, nullptr, 0);
    *error = "cannot run '" + argv[0] + "': " + std::strerror(code);
    return nullptr;
  }
  std::unique_ptr<ChildProcess> child(new ChildProcess);
  child->guardian_ = pid;
  child->life_fd_ = life.TakeIn();
  child->waiter_ = std::thread([process = child.get(), fd = output.TakeOut(),
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
