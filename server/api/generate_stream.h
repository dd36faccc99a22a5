// One request's life: from a resolved request to the last message of its stream.
#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <functional>
#include <memory>

#include "server/api/frontend.h"
#include "server/api/resolve.h"

namespace weft::server {

using ReplyReactor = grpc::ServerWriteReactor<grpc::ByteBuffer>;

// What became of a client's message: a request for an engine, or why there is none.
struct Admission {
  grpc::Status status = {};
  int64_t retry_after_ms = 0;  // when to try again, or 0
  EngineLink::State engine = {};
  Resolved request = {};
};

// What is known of a message before its text is read.
struct Message {
  std::string id;  // as the client gave it, or ""
  size_t bytes = 0;
  bool resume = false;  // goes on with a stream that was lost
};

// Starts the request on the engine, or, if that is not ready, on the next one: its first choice,
// and once that is past the prompt the others. When an engine is lost each goes on with another
// where it was. The stream owns itself; it enters the gate at once, and leaves it when the client
// has its status. A long text is left to a worker: `admit` may be called after this returned.
ReplyReactor* StartGenerateStream(Frontend* frontend, const Message& message,
                                  std::function<Admission()> admit,
                                  grpc::CallbackServerContext* context);

}  // namespace weft::server
