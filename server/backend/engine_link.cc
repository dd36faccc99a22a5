#include "server/backend/engine_link.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <spdlog/spdlog.h>

#include <algorithm>

#include "server/backend/callback_threads.h"
#include "server/backend/engine_channel.h"

namespace weft::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kRetry(100);        // while it is not ready
constexpr milliseconds kLookAgain(1000);   // while it is
constexpr milliseconds kProbeLimit(3000);  // for one answer
constexpr milliseconds kSilence(10000);    // busy, or gone?
constexpr std::chrono::seconds kFirstReminder(5);
constexpr std::chrono::seconds kRarestReminder(60);
// No step for this long while requests run: the engine hangs. Not-ready only, since a step may be
// slow.
constexpr double kStalledSeconds = 120;

std::atomic<uint64_t> last_life{0};

}  // namespace

EngineChannel::EngineChannel(const std::string& target) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  arguments.SetMaxSendMessageSize(kMaxMessageBytes);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 250);
  // A channel of our own: gRPC would share one socket among all channels to the same address, and
  // with it the back-off of an engine that is gone.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // A host that is lost says nothing: its calls end after this silence, and are replayed.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 20000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20000);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // What may be on its way for a stream that nobody reads: small, so that its sequence pauses soon.
  arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 16 << 10);
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  channel = grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), arguments);
  stub = engine::v1::Engine::NewStub(channel);
}

EngineLink::EngineLink(Judge judge, std::function<void()> changed)
    : judge_(std::move(judge)), changed_(std::move(changed)) {
  KeepCallbackThreads();
  state_.calls = std::make_shared<std::atomic<int>>(0);
  thread_ = std::thread([this] { Run(); });
}

EngineLink::~EngineLink() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void EngineLink::Connect(const std::string& target) { Use(target, false); }

void EngineLink::Attach(const std::string& target) { Use(target, true); }

void EngineLink::Use(const std::string& target, bool attached) {
  auto channel = std::make_shared<EngineChannel>(target);
  {
    const std::lock_guard lock(mutex_);
    state_.channel = channel;
  }
  State next;
  next.channel = channel;
  if (attached) next.target = target;
  next.why_not = "the engine is loading";
  Publish(channel, std::move(next));
  wake_.notify_all();
}

void EngineLink::Disconnect(const std::string& why) {
  std::shared_ptr<EngineChannel> old;
  {
    const std::lock_guard lock(mutex_);
    old = state_.channel;
  }
  State next;
  next.why_not = why;
  Publish(old, std::move(next));
}

int64_t EngineLink::restarts() const {
  const std::lock_guard lock(mutex_);
  return lives_ > 0 ? lives_ - 1 : 0;
}

EngineLink::State EngineLink::state() const {
  const std::lock_guard lock(mutex_);
  return state_;
}

void EngineLink::Suspect() {
  {
    const std::lock_guard lock(mutex_);
    suspect_ = true;
  }
  wake_.notify_all();
}

void EngineLink::Run() {
  while (true) {
    std::shared_ptr<EngineChannel> channel;
    {
      std::unique_lock lock(mutex_);
      const auto before = state_.channel;
      wake_.wait_for(lock, state_.ready ? kLookAgain : kRetry,
                     [&] { return stopping_ || suspect_ || state_.channel != before; });
      if (stopping_) return;
      suspect_ = false;
      channel = state_.channel;
    }
    if (channel != nullptr) Probe(channel);
    Remind();
  }
}

void EngineLink::Remind() {
  const State engine = state();
  const steady_clock::time_point now = steady_clock::now();
  if (engine.target.empty() || engine.ready || engine.refused) {
    away_since_ = now;
    remind_after_ = kFirstReminder;
  } else if (now - away_since_ >= remind_after_) {
    spdlog::warn("still not ready after {} s: {}{}",
                 std::chrono::duration_cast<std::chrono::seconds>(now - away_since_).count(),
                 engine.why_not, Where(engine));
    remind_after_ += std::min(remind_after_, kRarestReminder);
  }
}

std::string EngineLink::Where(const State& state) {
  return state.target.empty() ? "" : " (the engine at " + state.target + ")";
}

void EngineLink::Probe(const std::shared_ptr<EngineChannel>& channel) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kProbeLimit);
  auto info = std::make_shared<engine::v1::EngineInfo>();
  const steady_clock::time_point asked = steady_clock::now();
  const int calls_before = state().calls->load();
  const grpc::Status status = channel->stub->GetInfo(&context, {}, info.get());
  State next = state();
  if (status.ok()) {
    heard_ = steady_clock::now();
    next.info = info;
    next.asked = asked;
    next.of_others =
        std::max(0, info->running() + info->waiting() - std::max(calls_before, next.calls->load()));
    next.why_not = judge_(info.get());
    next.refused = !next.why_not.empty();
    if (info->running() > 0 && info->last_step_age_seconds() > kStalledSeconds) {
      next.why_not = "the engine has requests but made no step for " +
                     std::to_string(static_cast<int>(info->last_step_age_seconds())) + " s";
    }
    next.ready = next.why_not.empty();
    next.was_ready |= next.ready;
  } else if (next.ready && status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED &&
             steady_clock::now() - heard_ < kSilence) {
    return;
  } else {
    judge_(nullptr);
    if (next.ready) next.why_not = "the engine does not answer: " + status.error_message();
    if (!next.was_ready && next.info == nullptr) {
      next.why_not = "the engine is loading, or not there: " + status.error_message();
    }
    next.ready = false;
    next.refused = false;
  }
  Publish(channel, std::move(next));
}

void EngineLink::Publish(const std::shared_ptr<EngineChannel>& channel, State next) {
  bool turned = false;
  std::string refusal;
  const std::string where = Where(next);
  {
    const std::lock_guard lock(mutex_);
    if (state_.channel != channel) return;  // news of an engine that is no longer the one
    turned = state_.ready != next.ready;
    if (!next.ready && next.info != nullptr && next.why_not != state_.why_not) {
      refusal = next.why_not;
    }
    if (next.ready) {
      next.known = next.info;
    } else {
      next.known = state_.known;
    }
    next.life = state_.life;
    if (next.ready && turned) {
      next.life = ++last_life;
      ++lives_;
    }
    next.calls = state_.calls;
    state_ = std::move(next);
  }
  if (turned) {
    changed_();
  } else if (!refusal.empty()) {
    spdlog::warn("not ready: {}{}", refusal, where);
  }
}

}  // namespace weft::server
