// gRPC's part of the link to an engine.
#pragma once

#include <grpcpp/channel.h>

#include <memory>
#include <string>

#include "weft/engine/v1/engine.grpc.pb.h"

namespace weft::server {

// A prompt of a million tokens takes 3 MB as ids and more as text; gRPC's default is 4 MiB.
inline constexpr int kMaxMessageBytes = 64 << 20;

struct EngineChannel {
  explicit EngineChannel(const std::string& target);

  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<engine::v1::Engine::Stub> stub;
};

}  // namespace weft::server
