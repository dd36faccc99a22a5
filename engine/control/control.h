// The control plane: one socket from every rank to rank 0, beside MPI. Plans travel on it, and
// ranks block in poll() between them, so that an idle engine sleeps; a closed socket is a dead
// rank.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace weft {

class ControlError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

constexpr uint16_t kControlVersion = 2;  // of the frames and of everything serialised into them

enum class FrameType : uint16_t {
  kHello = 1,     // worker -> rank 0: rank, token, settings, facts
  kWelcome = 2,   // rank 0 -> worker: start-up goes on, as rank 0 decided
  kReject = 3,    // rank 0 -> worker: why start-up ends
  kPlan = 4,      // rank 0 -> worker: one serialised StepPlan
  kShutdown = 5,  // rank 0 -> worker: leave in order
};

struct Frame {
  FrameType type = FrameType::kHello;
  std::string payload;
};

// What all ranks must agree on, by name, in one order ("kv_dtype" -> "bf16").
using Settings = std::vector<std::pair<std::string, std::string>>;

// Empty if equal; else a sentence naming the first difference and both values.
std::string Disagreement(const Settings& rank0, const Settings& other, int other_rank);

// Rank 0's end.
class ControlServer {
 public:
  // Listens on `host` ("127.0.0.1" for one machine, "0.0.0.0" for several), any free port.
  explicit ControlServer(const std::string& host);
  ~ControlServer();

  // "host:port token", what the workers need; the token keeps strangers out.
  std::string Address() const;

  // What rank 0 makes of the facts of ranks 1 .. ranks-1 (at rank - 1): told to all of them. What
  // it throws ends start-up on every rank with its words.
  using Decide = std::function<std::string(const std::vector<Settings>& facts)>;

  // Waits until ranks 1 .. ranks-1 said hello with settings equal to `own`, then welcomes them all.
  // Throws ControlError when one disagrees (every rank is told), or names those missing on
  // time-out.
  void Accept(int ranks, const Settings& own, std::chrono::milliseconds timeout,
              const Decide& decide = nullptr);

  // To all workers; one thread at a time. Waits while a worker's buffer is full. Throws
  // ControlError naming a rank whose socket is closed.
  void Send(const Frame& frame);

  // Readable when a worker hung up: for the owner's poll(). -1 entries never occur.
  std::vector<int> Descriptors() const;
  // The rank of a worker whose socket is closed, if any. Workers send nothing after their hello, so
  // one that does counts as broken. Never blocks.
  std::optional<int> DeadRank();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// A worker's end.
class ControlClient {
 public:
  // Connects with retries until `timeout`, says hello and waits for the welcome. `facts` may differ
  // between ranks. Throws ControlError with rank 0's reason on reject.
  ControlClient(const std::string& address, int rank, const Settings& settings,
                std::chrono::milliseconds timeout, const Settings& facts = {});
  ~ControlClient();

  // What rank 0 decided.
  const std::string& welcome() const;

  // Blocks in poll() until a frame is there. Throws ControlError when rank 0 is gone.
  Frame Receive();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace weft
