// weft-chat with a pseudo terminal as its input, as a person runs it.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "tests/server/test_model.h"

namespace weft::server {

class Terminal {
 public:
  // `errors_too`: stderr goes to the terminal as well, else to a file as stdout does.
  Terminal(const std::string& server, const std::vector<std::string>& args,
           bool errors_too = false);
  ~Terminal();

  void Type(const std::string& text);     // "\x03": Ctrl-C, "\x04": Ctrl-D
  bool Says(const std::string& text);     // on stderr, soon
  bool Answers(const std::string& text);  // on stdout, soon
  bool Prompts(size_t count);             // so often, soon: with `errors_too`
  std::string Out() const { return ReadFile(folder_.path() / "out"); }
  std::string Err();
  int Wait();  // exit code, or -1 when it does not end

 private:
  TempFolder folder_;
  int master_ = -1;
  pid_t pid_ = -1;
  std::string screen_;
  const bool errors_too_;
};

}  // namespace weft::server
