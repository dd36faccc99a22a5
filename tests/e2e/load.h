// Mixed requests as many clients would send them, each on a thread of its own.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/e2e/server_process.h"
#include "tools/client/position.h"

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

// The i-th of a mix: greedy and seeded, each penalty alone and all options of sampling together,
// stop strings, log-probabilities, every selection mode, scores, answers that end by themselves and
// ones of 120 tokens; with `leavers` some that cancel, time out or read slowly.
Wish MakeWish(int i, const std::vector<std::string>& prompts, bool leavers, std::mt19937* random);

// What a reader of it would call the request, for messages.
std::string Describe(const v1::GenerateRequest& request);

// Where clients find the server of the moment.
class Door {
 public:
  explicit Door(v1::Inference::Stub* stub) : stub_(stub) {}
  void Lead(v1::Inference::Stub* stub);
  v1::Inference::Stub* stub() const;
  // Another one than `lost`, or null where none comes in a minute.
  v1::Inference::Stub* Next(const v1::Inference::Stub* lost) const;

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  v1::Inference::Stub* stub_;
};

// One whose server is lost goes on at the next.
class Stream {
 public:
  Stream(Door* door, Wish wish);
  ~Stream();

  const Wish& wish() const { return wish_; }
  int tokens() const { return tokens_; }
  bool ended() const { return ended_; }
  int resumes() const { return resumes_; }
  bool left() const { return left_; }            // it was the client that ended it
  const Reply& reply() const { return reply_; }  // once ended
  void Join();

 private:
  void Run();
  grpc::Status Read(v1::Inference::Stub* stub);

  Door* const door_;
  const Wish wish_;
  const std::chrono::system_clock::time_point deadline_;
  client::Position position_;
  Reply reply_;
  std::atomic<int> tokens_{0};
  std::atomic<int> resumes_{0};
  std::atomic<bool> ended_{false};
  std::atomic<bool> left_{false};
  std::thread thread_;
};

}  // namespace weft::e2e
