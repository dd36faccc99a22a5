// The requests that wait for a place, in one queue per client and priority. Higher priority goes
// first, then the client that was served least, then who came first. A queue that gets nothing for
// `aging` seconds counts as one priority higher, and so on up to the highest that is asked for: no
// priority starves, and no flood of one client lifts it over others of its own priority.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/core/client_shares.h"
#include "engine/core/sequence.h"

namespace weft {

class WaitQueue {
 public:
  // Tokens of prompts that were given a place and are not read yet, by client.
  using Owed = std::unordered_map<std::string, double>;

  explicit WaitQueue(double aging_seconds) : aging_(aging_seconds) {}

  void Push(std::unique_ptr<Sequence> sequence);
  void PushFront(std::unique_ptr<Sequence> sequence);  // it had a place before

  // The one to go next, or null. `top`: the highest level of those that run.
  Sequence* Next(double now, int32_t top, const ClientShares& shares, const Owed& owed);
  // Takes out what Next gave, with its level raised for good.
  std::unique_ptr<Sequence> Take(const Sequence& next, double now, int32_t top);

  // The highest priority that waits, or `top`.
  int32_t Top(int32_t top) const;
  // One priority more for every `aging` seconds of `waited`; not above `top`.
  int32_t Aged(int32_t level, double waited, int32_t top) const;

  void RemoveLeaving(std::vector<std::unique_ptr<Sequence>>* removed);
  void RemoveAll(std::vector<std::unique_ptr<Sequence>>* removed);
  Sequence* Find(int64_t sequence_id);  // null: unknown

  int32_t size() const { return size_; }
  // How many of each client wait, choices to come included.
  const std::unordered_map<std::string, int32_t>& by_client() const { return by_client_; }

 private:
  struct Queue {
    std::deque<std::unique_ptr<Sequence>> sequences;
    double since = -1;  // when it last gave one away, or was empty; -1: to be set
  };
  using Key = std::pair<std::string, int32_t>;  // client, priority

  static Key KeyOf(const Sequence& sequence) {
    return {sequence.request.client, sequence.request.priority};
  }
  int32_t LevelOf(const Key& key, const Queue& queue, double now, int32_t top) const;
  void Count(const Sequence& sequence, int32_t more);

  double aging_;
  std::map<Key, Queue> queues_;  // none is empty
  std::unordered_map<std::string, int32_t> by_client_;
  int32_t size_ = 0;
};

}  // namespace weft
