// One request's life: from a resolved request to the last message of its stream.
#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <memory>

#include "server/api/frontend.h"
#include "server/api/resolve.h"

namespace weft::server {

using ReplyReactor = grpc::ServerWriteReactor<grpc::ByteBuffer>;

// Starts the request on the engine, or, if that is not ready, on the next one: its first choice,
// and once that is past the prompt the others. When an engine is lost each goes on with another
// where it was. The stream owns itself; it has entered the gate, and leaves it when the client has
// its status.
ReplyReactor* StartGenerateStream(Frontend* frontend, const EngineLink::State& engine,
                                  Resolved request, grpc::CallbackServerContext* context);

// A stream that ends at once with `status`. `retry_after_ms`: when to try again, or 0.
ReplyReactor* RefuseStream(const grpc::Status& status, const std::string& request_id,
                           grpc::CallbackServerContext* context, int64_t retry_after_ms = 0);

}  // namespace weft::server
