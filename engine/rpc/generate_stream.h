// One Generate call at the engine's door: takes events on the engine's thread, writes them one by
// one.
#pragma once

#include <grpcpp/grpcpp.h>

#include <deque>
#include <memory>
#include <mutex>
#include <optional>

#include "engine/core/engine.h"
#include "engine/rpc/request_registry.h"
#include "weft/engine/v1/engine.pb.h"

namespace weft {

// Events wait in memory while the front end does not read: kMostPending of them, and those of the
// steps until the engine has paused the sequence. An event is a token, of a few bytes, some 180
// with 20 alternatives, or as much for each position of a chunk that is scored; and what `selected`
// asks for, 2^24 positions at most.
class GenerateStream : public grpc::ServerWriteReactor<engine::v1::GenerateEvent>,
                       public std::enable_shared_from_this<GenerateStream> {
 public:
  // Both must outlive the stream.
  GenerateStream(Engine* engine, RequestRegistry* requests, std::string request_id)
      : engine_(engine), requests_(requests), request_id_(std::move(request_id)) {}

  // Ends the call at once with an error; nothing was submitted.
  void Refuse(const Status& status);
  // Keeps this alive until gRPC is done with it.
  void Hold() { self_ = shared_from_this(); }
  // Nothing is written before: who hears of the request can abort it.
  void SetSequence(int64_t id);

  void Push(engine::v1::GenerateEvent event);
  void OnEvent(EngineEvent event);  // the engine's sink

  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  void FinishOnce(const grpc::Status& status);  // mutex_ held
  void WriteNext();                             // mutex_ held
  void Begin();                                 // mutex_ held
  void PauseOrGoOn();                           // mutex_ held

  static constexpr size_t kMostPending = 256;

  Engine* engine_;
  RequestRegistry* requests_;
  const std::string request_id_;
  std::shared_ptr<GenerateStream> self_;
  std::mutex mutex_;
  std::deque<engine::v1::GenerateEvent> pending_;  // the front one is being written if writing_
  bool begun_ = false;
  bool writing_ = false;
  bool finished_ = false;
  bool cancelled_ = false;
  bool paused_ = false;  // as the engine was told
  bool done_ = false;
  std::optional<grpc::Status> end_;  // after the pending events
  int64_t sequence_ = 0;
};

grpc::Status ToGrpc(const Status& status);

}  // namespace weft
