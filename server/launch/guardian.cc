#include "server/launch/guardian.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

// We are a fork of a process with threads: of what may hold a lock at that moment only malloc is
// used, which glibc keeps sound over fork.
namespace weft::server {
namespace {

constexpr int kLife = 3;
constexpr int kError = 4;

void ResetSignals() {
  struct sigaction plain {};
  plain.sa_handler = SIG_DFL;
  for (int signal = 1; signal < NSIG; ++signal) sigaction(signal, &plain, nullptr);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
}

[[noreturn]] void Exec(char* const* argv) {
  const pid_t guardian = getppid();
  setpgid(0, 0);
  ResetSignals();
  prctl(PR_SET_PDEATHSIG, SIGTERM);  // the guardian has one thread, so this comes once
  if (getppid() != guardian) _exit(127);
  close(kLife);
  const int null = open("/dev/null", O_RDONLY);
  if (null >= 0) dup2(null, STDIN_FILENO);
  if (null > kError) close(null);
  dup2(STDERR_FILENO, STDOUT_FILENO);  // stdout is not the engine's
  execvp(argv[0], argv);
  const int error = errno;
  [[maybe_unused]] const ssize_t written = write(kError, &error, sizeof error);
  _exit(127);
}

// Keeps only the standard streams and the two pipes, at known places.
void TidyFiles(const GuardianPlan& plan) {
  // Ours too: so it stays open until all that may print has ended.
  if (plan.output_fd >= 0) dup2(plan.output_fd, STDERR_FILENO);
  const int life = fcntl(plan.life_fd, F_DUPFD, 10);
  const int error = fcntl(plan.error_fd, F_DUPFD, 10);
  dup2(life, kLife);
  dup2(error, kError);
  fcntl(kError, F_SETFD, FD_CLOEXEC);
  close_range(kError + 1, ~0U, 0);
}

void PrepareSignals(sigset_t* while_waiting) {
  ResetSignals();
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGPIPE}) ::signal(signal, SIG_IGN);
  struct sigaction wake {};
  wake.sa_handler = [](int) {};
  sigaction(SIGCHLD, &wake, nullptr);
  sigset_t children;
  sigemptyset(&children);
  sigaddset(&children, SIGCHLD);
  sigprocmask(SIG_BLOCK, &children, nullptr);
  sigemptyset(while_waiting);
}

// Collects what has ended; true when `child` was among it.
bool Collect(pid_t child, int* status) {
  bool ended = false;
  int one = 0;
  for (pid_t pid; (pid = waitpid(-1, &one, WNOHANG)) > 0;) {
    if (pid != child) continue;
    ended = true;
    *status = one;
  }
  return ended;
}

// Until the child ended (true), the pipe closed, or the time is over; no limit if negative.
bool WaitForEnd(pid_t child, int life_fd, int limit_ms, const sigset_t& mask, int* status) {
  timespec end{};
  clock_gettime(CLOCK_MONOTONIC, &end);
  const int64_t end_ms = end.tv_sec * 1000 + end.tv_nsec / 1000000 + limit_ms;
  while (!Collect(child, status)) {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    const int64_t left = end_ms - (now.tv_sec * 1000 + now.tv_nsec / 1000000);
    if (limit_ms >= 0 && left <= 0) return false;
    const timespec time = {left / 1000, (left % 1000) * 1000000};
    pollfd life = {life_fd, POLLIN, 0};
    const int ready = ppoll(&life, 1, limit_ms < 0 ? nullptr : &time, &mask);
    if (ready > 0) return Collect(child, status);
  }
  return true;
}

void KillDescendants() {
  // Some may fork meanwhile, so until there is none.
  for (std::vector<pid_t> left = DescendantsOf(getpid()); !left.empty();
       left = DescendantsOf(getpid())) {
    for (const pid_t pid : left) kill(pid, SIGKILL);
    while (waitpid(-1, nullptr, 0) > 0) {
    }
  }
}

pid_t ParentOf(const char* pid) {
  const std::string path = "/proc/" + std::string(pid) + "/stat";
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return -1;
  char text[512];
  const ssize_t size = read(fd, text, sizeof text - 1);
  close(fd);
  if (size <= 0) return -1;
  text[size] = 0;
  // "pid (name) state ppid": the name may hold anything, ')' included.
  const char* name_end = std::strrchr(text, ')');
  return name_end == nullptr ? -1 : std::atoi(name_end + 4);
}

}  // namespace

void RunGuardian(const GuardianPlan& plan) {
  setpgid(0, 0);  // what a terminal sends to our group is not for the engine
  prctl(PR_SET_NAME, "weft-guardian");
  prctl(PR_SET_CHILD_SUBREAPER, 1);  // ranks whose mpirun was killed come to us
  TidyFiles(plan);
  sigset_t mask;
  PrepareSignals(&mask);
  const pid_t child = fork();
  if (child == 0) Exec(plan.argv);
  if (child < 0) {
    const int error = errno;
    [[maybe_unused]] const ssize_t written = write(kError, &error, sizeof error);
    _exit(127);
  }
  close(kError);
  int status = 0;
  if (!WaitForEnd(child, kLife, -1, mask, &status)) {
    bool ended = false;
    if (plan.grace_ms > 0) {
      kill(-child, SIGTERM);
      kill(child, SIGTERM);  // it may not have made its group yet
      ended = WaitForEnd(child, -1, plan.grace_ms, mask, &status);
    }
    if (!ended) status = SIGKILL;
  }
  KillDescendants();
  if (WIFEXITED(status)) _exit(WEXITSTATUS(status));
  ::signal(WTERMSIG(status), SIG_DFL);
  kill(getpid(), WTERMSIG(status));
  _exit(128 + WTERMSIG(status));
}

std::vector<pid_t> DescendantsOf(pid_t root) {
  std::vector<std::pair<pid_t, pid_t>> parents;  // of each process
  if (DIR* folder = opendir("/proc")) {
    while (const dirent* entry = readdir(folder)) {
      const pid_t pid = std::atoi(entry->d_name);
      if (pid > 0) parents.emplace_back(ParentOf(entry->d_name), pid);
    }
    closedir(folder);
  }
  std::vector<pid_t> found;
  for (size_t next = 0; next <= found.size(); ++next) {
    const pid_t parent = next == 0 ? root : found[next - 1];
    for (const auto& [above, pid] : parents) {
      if (above == parent) found.push_back(pid);
    }
  }
  return found;
}

}  // namespace weft::server
