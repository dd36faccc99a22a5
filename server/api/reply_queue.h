// What waits for a client: bounded in bytes, and written one by one.
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <chrono>
#include <deque>

#include "weft/v1/inference.pb.h"

namespace weft::server {

class ReplyQueue {
 public:
  explicit ReplyQueue(size_t most_bytes) : most_bytes_(most_bytes) {}

  // Deltas of one choice that wait together travel together.
  void Push(v1::GenerateResponse reply);
  // Nothing more is to be read from engines while false. What one more event brings may come after
  // it was true, of whatever size: with `selected` all lists of a token.
  bool HasRoom() const { return bytes_ < most_bytes_; }

  bool empty() const { return waiting_.empty(); }  // and nothing is being written
  bool writing() const { return writing_; }
  size_t bytes() const { return bytes_; }
  std::chrono::steady_clock::time_point writing_since() const { return since_; }  // while writing()

  // The foremost one, when not writing() and not empty(); it stays until EndWrite().
  const grpc::ByteBuffer* BeginWrite();
  void EndWrite();
  void DropWaiting();  // all but what is being written

 private:
  struct Entry {
    v1::GenerateResponse reply;
    size_t bytes;
  };

  const size_t most_bytes_;
  std::deque<Entry> waiting_;  // the first is being written while writing_
  size_t bytes_ = 0;           // of all of them
  grpc::ByteBuffer written_;
  bool writing_ = false;
  std::chrono::steady_clock::time_point since_;
};

}  // namespace weft::server
