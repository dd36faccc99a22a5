// One call of Tokenize.
#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include "server/api/frontend.h"

namespace weft::server {

// A long text is left to a worker, and read no further when the caller goes away or the server
// stops. Counts as a request of the gate until the caller has its status.
grpc::ServerUnaryReactor* StartTokenizeCall(Frontend* frontend,
                                            grpc::CallbackServerContext* context,
                                            const grpc::ByteBuffer* bytes, grpc::ByteBuffer* reply);

}  // namespace weft::server
