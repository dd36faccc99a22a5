// One Generate call on the engine, read event by event at the reader's pace.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>

namespace grpc {
class Status;
}
namespace weft::engine::v1 {
class GenerateEvent;
class GenerateRequest;
}  // namespace weft::engine::v1

namespace weft::server {

struct EngineChannel;

class EngineCall {
 public:
  // Called on gRPC's threads, one call at a time.
  class Reader {
   public:
    virtual ~Reader() = default;
    virtual void OnEngineEvent(const engine::v1::GenerateEvent& event) = 0;
    // The last call. What the call and the channel held is freed after it. `retry_after_ms`: what
    // the engine advises, or 0.
    virtual void OnEngineDone(const grpc::Status& status, int64_t retry_after_ms) = 0;
  };

  // `reader` is kept alive until OnEngineDone has returned. No event comes before Next().
  static std::shared_ptr<EngineCall> Start(std::shared_ptr<EngineChannel> channel,
                                           const engine::v1::GenerateRequest& request,
                                           std::chrono::system_clock::time_point deadline,
                                           std::shared_ptr<Reader> reader);

  virtual ~EngineCall() = default;

  // Asks for one more event; to be called again only after it came. gRPC's flow control holds the
  // engine back meanwhile.
  virtual void Next() = 0;

  // The engine ends the sequence within a step and tells its figures as the last event, which is
  // still to be read. Once an event came.
  virtual void Abort() = 0;

  // The engine stops the sequence; OnEngineDone follows. Any number of times, at any time.
  virtual void Cancel() = 0;
};

}  // namespace weft::server
