// Where requests wait for a ready engine: those whose engine was lost, and those that came while
// there was none.
//
// A request that crashes its engine must not crash one after another for ever. One that lost two
// engines in a row without anything new from either is a suspect. Suspects are sent one at a time,
// the next when the one before brought something new or ended, while all others go on freely. When
// `most_deaths` engines died while a request was the suspect being tried, it ends with INTERNAL.
#pragma once

#include <grpcpp/support/status.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <list>
#include <memory>
#include <mutex>
#include <thread>

#include "server/backend/engine_fit.h"
#include "server/backend/engine_pool.h"

namespace weft::server {

class WaitingRoom {
 public:
  // A request's history with engines; the request keeps it.
  struct Record {
    uint64_t life = 0;      // EngineLink::State::life of the engine it was last sent to; 0: none
    bool progress = false;  // had something new from that engine
    int fruitless = 0;      // engines lost without, in a row
    bool on_trial = false;  // was sent as the suspect being tried
    int deaths = 0;         // of engines meanwhile
    std::chrono::steady_clock::time_point lost_at;
    std::chrono::steady_clock::time_point since;  // waits from here on
    std::shared_ptr<const EngineNeeds> needs;     // null: any engine will do
  };

  // A waiting request. One of the two is called, once, on the room's thread and without locks.
  class Guest {
   public:
    virtual ~Guest() = default;
    virtual void OnEngine(const EngineLink::State& engine, const Record& record) = 0;
    virtual void OnNoEngine(const grpc::Status& status) = 0;
  };

  // `pool` must outlive it. A wait ends with UNAVAILABLE after `timeout` (0: nothing waits), and
  // with FAILED_PRECONDITION once there is no engine that the request could go on with, nor one
  // that is away and was such.
  // most_deaths: 0: without end.
  WaitingRoom(EnginePool* pool, std::chrono::duration<double> timeout, int most_deaths);
  ~WaitingRoom();

  bool open() const { return timeout_.count() > 0; }
  // So many wait that newcomers are to be refused; requests that were running never are.
  bool full() const;

  // The record of a newcomer is empty; after a loss it is what OnEngine gave, with `progress` set.
  void Wait(std::shared_ptr<Guest> guest, Record record);
  // Ends its wait, or its trial. To be called when it ends, and when it gets something new.
  void Leave(const Guest* guest);

  int64_t replays() const { return replays_; }  // requests sent to a further engine

 private:
  using Clock = std::chrono::steady_clock;
  struct Entry {
    std::shared_ptr<Guest> guest;
    Record record;
  };

  void Run();
  bool ServeOne(std::unique_lock<std::mutex>* lock);  // false: nobody can be served now
  grpc::Status WhyEnd(const Record& record, const EngineLink::State& engine, bool late) const;
  void Send(Entry* entry, const EngineLink::State& engine, std::unique_lock<std::mutex>* lock);

  EnginePool* const pool_;
  const std::chrono::duration<double> timeout_;
  const int most_deaths_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::list<Entry> waiting_;  // in order of arrival here
  const Guest* trial_ = nullptr;
  std::atomic<int64_t> replays_{0};
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace weft::server
