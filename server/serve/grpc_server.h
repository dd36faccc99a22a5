// The gRPC server: port, limits, health, reflection.
#pragma once

#include <chrono>
#include <memory>
#include <string>

namespace weft::server {

struct Frontend;

class GrpcServer {
 public:
  // Returns null with *error set when the address cannot be listened on. `frontend` must outlive
  // it. Connections without a word are asked for one every `keepalive_seconds`; 0: never.
  static std::unique_ptr<GrpcServer> Open(const std::string& listen, double keepalive_seconds,
                                          Frontend* frontend, std::string* error);
  virtual ~GrpcServer() = default;

  // The address, with the port in place of a 0.
  virtual std::string address() const = 0;

  // What grpc.health.v1 says of "" and of weft.v1.Inference; not serving at first.
  virtual void SetServing(bool serving) = 0;

  // Ends calls that are left after `grace`, and closes the port.
  virtual void Shutdown(std::chrono::milliseconds grace) = 0;
};

}  // namespace weft::server
