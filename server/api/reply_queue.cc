#include "server/api/reply_queue.h"

#include <utility>

#include "server/api/wire.h"

namespace weft::server {
namespace {

constexpr int kTokensPerDelta = 64;

void Join(v1::Delta* waiting, const v1::Delta& more) {
  waiting->mutable_text()->append(more.text());
  waiting->mutable_token_ids()->MergeFrom(more.token_ids());
  waiting->mutable_logprobs()->MergeFrom(more.logprobs());
  waiting->mutable_top()->MergeFrom(more.top());
  waiting->mutable_reasoning()->append(more.reasoning());
  waiting->mutable_tool_calls()->MergeFrom(more.tool_calls());
}

}  // namespace

void ReplyQueue::Push(v1::GenerateResponse reply) {
  const size_t bytes = reply.ByteSizeLong();
  bytes_ += bytes;
  const bool back_is_free = waiting_.size() > (writing_ ? 1u : 0u);
  if (reply.has_delta() && back_is_free) {
    Entry& back = waiting_.back();
    if (back.reply.has_delta() && back.reply.index() == reply.index() &&
        back.reply.delta().token_ids_size() < kTokensPerDelta) {
      Join(back.reply.mutable_delta(), reply.delta());
      back.bytes += bytes;
      return;
    }
  }
  waiting_.push_back({std::move(reply), bytes});
}

const grpc::ByteBuffer* ReplyQueue::BeginWrite() {
  writing_ = true;
  since_ = std::chrono::steady_clock::now();
  written_ = Serialize(waiting_.front().reply);
  return &written_;
}

void ReplyQueue::EndWrite() {
  writing_ = false;
  bytes_ -= waiting_.front().bytes;
  waiting_.pop_front();
}

void ReplyQueue::DropWaiting() {
  const size_t kept = writing_ ? 1 : 0;
  while (waiting_.size() > kept) {
    bytes_ -= waiting_.back().bytes;
    waiting_.pop_back();
  }
}

}  // namespace weft::server
