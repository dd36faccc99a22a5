// A call's status in the log.
#pragma once

#include <grpcpp/support/status.h>

#include <string>

namespace weft::server {

const char* CodeName(grpc::StatusCode code);  // "NOT_FOUND"

// Without line ends: messages may quote what a client sent, which must not forge a line of the log.
std::string OneLine(std::string text);

}  // namespace weft::server
