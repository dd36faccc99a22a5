// One conversation with a weft-server.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "weft/v1/inference.pb.h"

namespace weft::chat {

// Set by Ctrl-C; a running Ask() then cancels its call.
extern std::atomic<bool> interrupted;

// How one question went.
struct Outcome {
  bool ok = false;
  bool interrupted = false;
  std::string error;      // when neither
  std::string answer;     // all of it, or what had come
  std::string reasoning;  // before it
  v1::Complete complete;
  // As seen from here, over all streams that it took: the whole call, and until the first token.
  double seconds = 0;
  std::optional<double> first_token_seconds;
};

// Gets each piece as it comes.
struct Listener {
  std::function<void(std::string_view)> text;
  std::function<void(std::string_view)> reasoning;
  std::function<void(std::string_view)> notice;      // a sentence about the connection
  std::function<void(int done, int total)> prefill;  // tokens read, again and again
};

class Client {
 public:
  // An answer whose server is lost goes on when there is one again within so many seconds; 0: it
  // ends.
  Client(const std::string& target, double resume_seconds);
  ~Client();

  Outcome Ask(const v1::ChatRequest& request, const Listener& listener);

  // Lines about model and server. False, with *error set, when it does not answer.
  bool Info(std::string* text, std::string* error);

 private:
  std::string ErrorText(int code, const std::string& message) const;

  struct Stub;
  class Asking;
  std::unique_ptr<Stub> stub_;
};

}  // namespace weft::chat
