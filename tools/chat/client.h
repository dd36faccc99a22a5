// One conversation with a weft-server.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
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
  std::string error;   // when neither
  std::string answer;  // all of it, or what had come
  v1::Complete complete;
  double seconds = 0;              // the whole call, as seen from here
  double first_token_seconds = 0;  // until the first text
};

class Client {
 public:
  explicit Client(const std::string& target);
  ~Client();

  // Sends `request`, hands each piece of text to `on_text` as it comes.
  Outcome Ask(const v1::ChatRequest& request, const std::function<void(std::string_view)>& on_text);

 private:
  struct Stub;
  std::unique_ptr<Stub> stub_;
};

}  // namespace weft::chat
