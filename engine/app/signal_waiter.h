// SIGTERM and SIGINT, taken by a thread of their own. Until an action is set they end the process,
// as they would by default: during start-up, and while a script runs.
#pragma once

#include <functional>
#include <memory>

namespace weft {

class SignalWaiter {
 public:
  // Blocks the signals for this thread and those it starts: make it before any other thread.
  SignalWaiter();

  // What a signal does from now on; runs on the waiter's thread. When this returns, no earlier
  // action runs any more.
  void OnSignal(std::function<void()> action);

 private:
  struct State;
  std::shared_ptr<State> state_;  // shared with the thread, which lives as long as the process
};

}  // namespace weft
