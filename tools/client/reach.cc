#include "tools/client/reach.h"

namespace weft::client {

std::string NotAvailable(grpc::Channel& channel, const std::string& target,
                         const std::string& message) {
  const bool connected = channel.GetState(false) == GRPC_CHANNEL_READY;
  return "the server at " + target + " is not available: " + message +
         (connected ? "" : "; start weft-server, or name it with --server");
}

}  // namespace weft::client
