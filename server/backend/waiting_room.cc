#include "server/backend/waiting_room.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>

#include "weft/engine/v1/engine.pb.h"

namespace weft::server {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kTick(20);
// An engine that still lives but gave a request up, as one that shuts down does, is left alone
// this long.
constexpr milliseconds kSameEngine(500);
constexpr int kSuspectAfter = 2;  // losses without anything new
constexpr size_t kMostNewcomers = 1024;

// Whether `engine` was alive after the request lost its own.
bool IsAlive(const EngineLink::State& engine, const WaitingRoom::Record& record) {
  if (record.life == 0) return true;
  if (engine.asked <= record.lost_at) return false;
  return engine.life != record.life ||
         std::chrono::steady_clock::now() - record.lost_at >= kSameEngine;
}

std::string WhyUnfit(const WaitingRoom::Record& record, const engine::v1::EngineInfo& info) {
  return record.needs == nullptr ? "" : WhyUnfit(*record.needs, info);
}

}  // namespace

WaitingRoom::WaitingRoom(EnginePool* pool, std::chrono::duration<double> timeout, int most_deaths)
    : pool_(pool), timeout_(timeout), most_deaths_(most_deaths), thread_([this] { Run(); }) {}

WaitingRoom::~WaitingRoom() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

bool WaitingRoom::full() const {
  const std::lock_guard lock(mutex_);
  return waiting_.size() >= kMostNewcomers;
}

void WaitingRoom::Wait(std::shared_ptr<Guest> guest, Record record) {
  const Clock::time_point now = Clock::now();
  {
    const std::lock_guard lock(mutex_);
    if (trial_ == guest.get()) trial_ = nullptr;
    if (record.life != 0) {
      record.lost_at = now;
      record.fruitless = record.progress ? 0 : record.fruitless + 1;
    }
    if (record.progress) {
      record.on_trial = false;
      record.deaths = 0;
    }
    // Being given up again and again by one living engine is one wait.
    if (record.since == Clock::time_point() || record.progress) record.since = now;
    waiting_.push_back({std::move(guest), record});
  }
  if (record.life != 0) pool_->Suspect();
  wake_.notify_all();
}

void WaitingRoom::Leave(const Guest* guest) {
  const std::lock_guard lock(mutex_);
  if (trial_ == guest) trial_ = nullptr;
  waiting_.remove_if([guest](const Entry& entry) { return entry.guest.get() == guest; });
}

void WaitingRoom::Run() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    while (!stopping_ && ServeOne(&lock)) {
    }
    if (stopping_) break;
    if (waiting_.empty()) {
      wake_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
    } else {
      wake_.wait_for(lock, kTick, [this] { return stopping_; });
    }
  }
}

bool WaitingRoom::ServeOne(std::unique_lock<std::mutex>* lock) {
  const Clock::time_point now = Clock::now();
  for (auto it = waiting_.begin(); it != waiting_.end(); ++it) {
    const Record& record = it->record;
    const bool suspect = record.fruitless >= kSuspectAfter;
    const EngineLink::State engine = pool_->Best([&](const EngineLink::State& state) {
      return IsAlive(state, record) && WhyUnfit(record, *state.info).empty();
    });
    const bool late = now - record.since >= timeout_;
    const bool hopeless = !engine.ready && !pool_->MayCome([&](const engine::v1::EngineInfo& info) {
      return WhyUnfit(record, info).empty();
    });
    const bool over = late || hopeless;
    if (!over && (!engine.ready || (suspect && trial_ != nullptr))) continue;
    Entry entry = std::move(*it);
    waiting_.erase(it);
    if (!over) {
      Send(&entry, engine, lock);
    } else {
      const grpc::Status status = WhyEnd(entry.record, engine, late);
      lock->unlock();
      entry.guest->OnNoEngine(status);
    }
    entry.guest.reset();  // may end the request: without the lock
    lock->lock();
    return true;
  }
  return false;
}

grpc::Status WaitingRoom::WhyEnd(const Record& record, const EngineLink::State& engine,
                                 bool late) const {
  std::string why = engine.why_not;
  if (engine.known != nullptr) {
    if (const std::string unfit = WhyUnfit(record, *engine.known); !unfit.empty()) why = unfit;
  }
  if (!late) return {grpc::StatusCode::FAILED_PRECONDITION, why};
  return {grpc::StatusCode::UNAVAILABLE,
          fmt::format("no engine took it within {} s{}{}", timeout_.count(),
                      why.empty() ? "" : ": ", why)};
}

void WaitingRoom::Send(Entry* entry, const EngineLink::State& engine,
                       std::unique_lock<std::mutex>* lock) {
  Record& record = entry->record;
  const bool died = record.life != 0 && engine.life != record.life;
  if (record.on_trial && died) ++record.deaths;
  if (most_deaths_ > 0 && record.deaths >= most_deaths_) {
    lock->unlock();
    entry->guest->OnNoEngine(
        {grpc::StatusCode::INTERNAL,
         fmt::format("{} engines in a row died when this request ran on them; it is not sent to "
                     "another",
                     record.deaths)});
    return;
  }
  if (record.life != 0) ++replays_;
  if (engine.life != record.life) record.since = Clock::time_point();
  record.on_trial = record.fruitless >= kSuspectAfter;
  if (record.on_trial) trial_ = entry->guest.get();
  record.life = engine.life;
  record.progress = false;
  lock->unlock();
  entry->guest->OnEngine(engine, record);
}

}  // namespace weft::server
