// What to tell when a server cannot be used.
#pragma once

#include <grpcpp/channel.h>

#include <string>

namespace weft::client {

// A sentence; with the next step, where nothing answers at `target`.
std::string NotAvailable(grpc::Channel& channel, const std::string& target,
                         const std::string& message);

}  // namespace weft::client
