// What a client is told whose request is not taken, and when to try again.
#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/status.h>

#include <cstdint>
#include <exception>

namespace weft::server {

grpc::Status Draining();
// Another stream has its place.
grpc::Status TakenOver();
// Its text could not be read, as where a pattern ran out of memory.
grpc::Status UnreadableText(const std::exception& error);
// Its text was not taken; beside kRetryTextMs.
grpc::Status TooManyTexts();
constexpr int64_t kRetryTextMs = 1000;

// As trailing metadata, for programs; the status's message says it to people. 0: no advice.
void AdviseRetry(int64_t ms, grpc::CallbackServerContext* context);

}  // namespace weft::server
