// Mixed requests as many clients would send them, each on a thread of its own.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/e2e/server_process.h"

namespace weft::e2e {

struct Wish {
  v1::GenerateRequest request;
  int cancel_at = -1;                      // cancels after this many tokens
  std::chrono::milliseconds time{600000};  // its deadline
  std::chrono::milliseconds pause{0};      // of a slow reader, after each message
};

// The documents of deploy/examples up to so many tokens, cut to so many bytes, with a question
// each, as prompts of the demo model.
std::vector<std::string> Prompts(int64_t max_tokens, size_t max_bytes = std::string::npos);

// The i-th of a mix: greedy and seeded, some with every option of sampling, every selection mode,
// scores, answers that end by themselves and ones of 120 tokens; with `leavers` some that cancel,
// time out or read slowly.
Wish MakeWish(int i, const std::vector<std::string>& prompts, bool leavers, std::mt19937* random);

// What a reader of it would call the request, for messages.
std::string Describe(const v1::GenerateRequest& request);

class Stream {
 public:
  Stream(v1::Inference::Stub* stub, Wish wish);
  ~Stream();

  const Wish& wish() const { return wish_; }
  int tokens() const { return tokens_; }
  bool ended() const { return ended_; }
  bool left() const { return left_; }            // it was the client that ended it
  const Reply& reply() const { return reply_; }  // once ended
  void Join();

 private:
  void Run(v1::Inference::Stub* stub);

  const Wish wish_;
  Reply reply_;
  std::atomic<int> tokens_{0};
  std::atomic<bool> ended_{false};
  std::atomic<bool> left_{false};
  std::thread thread_;
};

}  // namespace weft::e2e
