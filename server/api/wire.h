// Messages and their bytes. Methods with text take raw bytes, since gRPC 1.51 answers a message
// that does not parse, such as one with invalid UTF-8, with UNIMPLEMENTED and no word of why.
#pragma once

#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/status.h>

#include <string>

namespace weft::server {

template <typename Message>
grpc::Status Parse(const grpc::ByteBuffer& bytes, Message* message) {
  if (!bytes.Valid()) {
    return grpc::Status(grpc::StatusCode::CANCELLED, "the client left before its request came");
  }
  grpc::ByteBuffer consumed = bytes;  // shares the slices
  if (grpc::SerializationTraits<Message>::Deserialize(&consumed, message).ok()) {
    return grpc::Status::OK;
  }
  return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT,
                      "the request must be a " + Message::descriptor()->full_name() +
                          " whose strings are valid UTF-8; it does not parse as one");
}

template <typename Message>
grpc::ByteBuffer Serialize(const Message& message) {
  grpc::ByteBuffer bytes;
  bool own = false;
  grpc::SerializationTraits<Message>::Serialize(message, &bytes, &own);
  return bytes;
}

}  // namespace weft::server
