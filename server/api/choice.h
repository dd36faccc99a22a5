// One choice of a request: its way through engines, from the first to the last that it needs, and
// its answer. All of a request's choices live under one lock, their stream's.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "server/api/answer.h"
#include "server/api/frontend.h"
#include "server/backend/engine_call.h"

namespace weft::server {

class Choice final : public EngineCall::Reader,
                     public WaitingRoom::Guest,
                     public std::enable_shared_from_this<Choice> {
 public:
  // The stream of the request. All but mutex() is called under it.
  class Owner {
   public:
    virtual ~Owner() = default;
    virtual std::mutex& mutex() = 0;
    virtual bool MayRead() const = 0;  // there is room for what the engine says
    // The engine made this of the wishes, for all choices.
    virtual void OnAdmitted(const engine::v1::Admitted& admitted) = 0;
    virtual void OnReplies(int index, std::vector<v1::GenerateResponse> replies) = 0;
    // No engine will say more of this choice; called once.
    virtual void OnOver(const grpc::Status& status) = 0;
  };

  Choice(Frontend* frontend, std::shared_ptr<Owner> owner, RequestState state,
         const StopStrings& stops, std::chrono::system_clock::time_point deadline);

  // All of these under the owner's lock.
  // Before Start: goes on behind what an earlier stream told. Not OK when that cannot be.
  grpc::Status Resume(const v1::ResumedChoice& told);
  // Before Start: it is the one that is admitted for all, with so many behind it.
  void Lead(int further);
  // In Start's place: all of it was told before.
  void Skip(const EngineLink::State& engine);
  void Start(const EngineLink::State& engine);
  // Where the first choice runs, and as it was admitted there: the request has its place, and no
  // queue is too long for it any more.
  void StartBeside(const Choice& first);
  void ReadOn();  // where it had to wait for room
  // Gives up on the engine; OnOver follows, perhaps at once.
  void End(const grpc::Status& status);
  bool started() const { return started_; }
  bool over() const { return over_; }
  bool needs_engine() const { return !over_ && !answer_.at_stop_string(); }
  // The engine is past the prompt.
  bool under_way() const { return state_.begun() || over_; }
  const RequestState& state() const { return state_; }
  const Answer& answer() const { return answer_; }
  int64_t retry_after_ms() const { return retry_after_ms_; }  // of an engine that refused it; or 0

  // Without the lock, when the stream is gone.
  void LeaveRoom() { frontend_->room.Leave(this); }

 private:
  void OnEngineEvent(const engine::v1::GenerateEvent& event) override;
  void OnEngineDone(const grpc::Status& status, int64_t retry_after_ms) override;
  void OnEngine(const EngineLink::State& engine, const WaitingRoom::Record& record) override;
  void OnNoEngine(const grpc::Status& status) override;

  // Under the lock.
  void Wait();
  void Send(const EngineLink::State& engine);
  void Over(const grpc::Status& status);
  void CompleteAlone();
  void NoteProgress();
  grpc::Status StatusFor(const grpc::Status& engine_status) const;

  Frontend* const frontend_;
  const std::shared_ptr<Owner> owner_;
  RequestState state_;
  Answer answer_;
  const std::chrono::system_clock::time_point deadline_;
  EngineLink::State engine_;
  std::shared_ptr<EngineCall> call_;  // the latest
  std::shared_ptr<std::atomic<int>> calls_;
  WaitingRoom::Record record_;
  std::string loss_;  // how the last engine was lost
  grpc::Status status_;
  int64_t retry_after_ms_ = 0;
  bool started_ = false;
  bool reading_ = false;   // from Next() until its event was taken in
  bool waiting_ = false;   // in the room; else a call runs until over_
  bool stopping_ = false;  // the engine was told of the stop string
  bool ending_ = false;    // the engine call was cancelled, with status_ for the client
  bool over_ = false;
};

}  // namespace weft::server
