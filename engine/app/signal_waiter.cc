#include "engine/app/signal_waiter.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <mutex>
#include <thread>
#include <utility>

namespace weft {

struct SignalWaiter::State {
  std::mutex mutex;  // held while the action runs
  std::function<void()> action;
};

SignalWaiter::SignalWaiter() : state_(std::make_shared<State>()) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  std::thread([set, state = state_] {
    for (int signal = 0; sigwait(&set, &signal) == 0;) {
      std::lock_guard lock(state->mutex);
      if (!state->action) _exit(128 + signal);
      state->action();
    }
  }).detach();
}

void SignalWaiter::OnSignal(std::function<void()> action) {
  std::lock_guard lock(state_->mutex);
  state_->action = std::move(action);
}

}  // namespace weft
