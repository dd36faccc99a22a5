// For tests in which engines die while requests run.
#pragma once

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "tests/server/bench.h"

namespace weft::server {

// é 中文 🧵: characters of 1 to 4 bytes, each byte a token.
inline const std::string kText = "h\xc3\xa9 \xe4\xb8\xad\xe6\x96\x87 \xf0\x9f\xa7\xb5!";

std::vector<int32_t> Bytes(const std::string& text);
FakeScript Saying(const std::string& text, int hang_at = -1);

// One Generate call on a thread of its own.
class Call {
 public:
  Call(Bench* bench, const v1::GenerateRequest& request,
       std::chrono::milliseconds time = std::chrono::seconds(60));
  ~Call() { End(); }

  int tokens() const { return tokens_; }
  int score_events() const { return scores_; }
  void Cancel() { context_.TryCancel(); }
  const Heard& End();  // waits for it

 private:
  grpc::ClientContext context_;
  Heard heard_;
  std::atomic<int> tokens_{0};
  std::atomic<int> scores_{0};
  std::thread thread_;
};

// Another engine at the address of the one that dies now. Returns what that was last asked.
engine::v1::GenerateRequest Replace(Bench* bench, const FakeScript& script);

}  // namespace weft::server
