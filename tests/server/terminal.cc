#include "tests/server/terminal.h"

#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <stdexcept>

#include "tests/server/bench.h"

namespace weft::server {

Terminal::Terminal(const std::string& server, const std::vector<std::string>& args, bool errors_too)
    : errors_too_(errors_too) {
  int slave = -1;
  if (openpty(&master_, &slave, nullptr, nullptr, nullptr) != 0) {
    throw std::runtime_error("openpty failed");
  }
  std::vector<std::string> words = {std::string(WEFT_BIN_DIR) + "/weft-chat", "--server", server};
  words.insert(words.end(), args.begin(), args.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const std::string out = folder_.path() / "out";
  const std::string err = folder_.path() / "err";
  pid_ = fork();
  if (pid_ == 0) {
    setsid();
    setenv("TERM", "xterm", 1);
    ioctl(slave, TIOCSCTTY, 0);
    dup2(slave, STDIN_FILENO);
    dup2(open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), STDOUT_FILENO);
    dup2(errors_too ? slave : open(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), STDERR_FILENO);
    close(master_);
    execv(argv[0], argv.data());
    _exit(127);
  }
  close(slave);
}

Terminal::~Terminal() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  close(master_);
}

void Terminal::Type(const std::string& text) {
  if (write(master_, text.data(), text.size()) < 0) throw std::runtime_error("cannot type");
}

std::string Terminal::Err() {
  pollfd ready = {master_, POLLIN, 0};
  char bytes[4096];
  while (poll(&ready, 1, 0) > 0 && (ready.revents & POLLIN) != 0) {  // echoes, too
    const ssize_t got = read(master_, bytes, sizeof(bytes));
    if (got <= 0) break;
    screen_.append(bytes, static_cast<size_t>(got));
  }
  return errors_too_ ? screen_ : ReadFile(folder_.path() / "err");
}

bool Terminal::Says(const std::string& text) {
  return Eventually([&] { return Err().find(text) != std::string::npos; });
}

bool Terminal::Prompts(size_t count) {
  return Eventually([&] {
    const std::string screen = Err();
    size_t found = 0;
    for (size_t at = screen.find("> "); at != std::string::npos; at = screen.find("> ", at + 1)) {
      ++found;
    }
    return found >= count;
  });
}

bool Terminal::Answers(const std::string& text) {
  return Eventually([&] { return Out().find(text) != std::string::npos; });
}

int Terminal::Wait() {
  int status = 0;
  const bool ended = Eventually([&] {
    Err();
    return waitpid(pid_, &status, WNOHANG) == pid_;
  });
  if (!ended) return -1;
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace weft::server
