// The way to the engine of the moment: where it is, whether it is ready, what it is.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

namespace weft::engine::v1 {
class EngineInfo;
}

namespace weft::server {

struct EngineChannel;  // engine_channel.h: the gRPC side

class EngineLink {
 public:
  // What requests need to know at one moment.
  struct State {
    std::shared_ptr<EngineChannel> channel;              // null: no engine
    std::shared_ptr<const engine::v1::EngineInfo> info;  // null until it was first ready
    // Of the last engine that was ready, also while none is; null at first start-up.
    std::shared_ptr<const engine::v1::EngineInfo> known;
    bool ready = false;
    bool was_ready = false;  // since Connect(), however shortly
    bool refused = false;    // it answers, and waiting will not make it one that can be used
    std::string why_not = "the engine has not been started";
    std::string target;  // where it is, if others started it
    uint64_t life = 0;   // another number, unique among all links, each time one becomes ready
    std::chrono::steady_clock::time_point asked;  // when the question was put that it answered
    std::shared_ptr<std::atomic<int>> calls;      // Generate calls of ours on it
    int of_others = 0;  // requests that it had beside ours, when it was asked
  };

  // "", or " (the engine at HOST:PORT)", for the log.
  static std::string Where(const State& state);

  // Looks at what an engine answers and returns "" or why it cannot be used; null: it does not
  // answer.
  using Judge = std::function<std::string(const engine::v1::EngineInfo*)>;

  // `judge` and `changed` are called without locks; `changed` whenever ready() changes.
  EngineLink(Judge judge, std::function<void()> changed);
  ~EngineLink();

  // From now on the engine at HOST:PORT is the one; tries for as long as it takes.
  void Connect(const std::string& target);
  // The same for one that others start: nobody else would say that it does not come, so the log
  // does now and then.
  void Attach(const std::string& target);
  void Disconnect(const std::string& why);

  State state() const;
  bool ready() const { return state().ready; }
  // Times that an engine became ready after the first.
  int64_t restarts() const;

  // A request found the engine gone: look now, not at the next turn.
  void Suspect();

 private:
  void Run();
  void Probe(const std::shared_ptr<EngineChannel>& channel);
  void Publish(const std::shared_ptr<EngineChannel>& channel, State next);
  void Use(const std::string& target, bool attached);
  void Remind();

  const Judge judge_;
  const std::function<void()> changed_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  State state_;
  int64_t lives_ = 0;
  bool suspect_ = false;
  bool stopping_ = false;
  std::chrono::steady_clock::time_point heard_;  // the last answer
  // Of an engine that others start: since when it is away, and after how long to say so next.
  std::chrono::steady_clock::time_point away_since_ = std::chrono::steady_clock::now();
  std::chrono::seconds remind_after_{5};
  std::thread thread_;
};

}  // namespace weft::server
