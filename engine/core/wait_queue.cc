#include "engine/core/wait_queue.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <tuple>

namespace weft {

namespace {

// One that was preempted while its reader lagged waits for the reader first.
bool Runs(const std::unique_ptr<Sequence>& sequence) { return !sequence->paused; }

}  // namespace

void WaitQueue::Count(const Sequence& sequence, int32_t more) {
  size_ += more;
  const auto at = by_client_.try_emplace(sequence.request.client, 0).first;
  at->second += more * sequence.places();
  if (at->second == 0) by_client_.erase(at);
}

void WaitQueue::Push(std::unique_ptr<Sequence> sequence) {
  Count(*sequence, 1);
  queues_[KeyOf(*sequence)].sequences.push_back(std::move(sequence));
}

void WaitQueue::PushFront(std::unique_ptr<Sequence> sequence) {
  Count(*sequence, 1);
  queues_[KeyOf(*sequence)].sequences.push_front(std::move(sequence));
}

int32_t WaitQueue::Top(int32_t top) const {
  for (const auto& [key, queue] : queues_) top = std::max(top, key.second);
  return top;
}

int32_t WaitQueue::Aged(int32_t level, double waited, int32_t top) const {
  const double raised = level + std::floor(std::max(0.0, waited) / aging_);
  return raised < top ? static_cast<int32_t>(raised) : std::max(level, top);
}

int32_t WaitQueue::LevelOf(const Key& key, const Queue& queue, double now, int32_t top) const {
  const int32_t level = std::max(key.second, queue.sequences.front()->level);
  return Aged(level, now - queue.since, top);
}

Sequence* WaitQueue::Next(double now, int32_t top, const ClientShares& shares, const Owed& owed) {
  top = Top(top);
  Sequence* best = nullptr;
  std::tuple<int32_t, double, int64_t> best_rank;  // the least goes first
  for (auto& [key, queue] : queues_) {
    if (queue.since < 0) queue.since = now;
    const auto debt = owed.find(key.first);
    const auto first = std::find_if(queue.sequences.begin(), queue.sequences.end(), Runs);
    if (first == queue.sequences.end()) continue;
    Sequence* front = first->get();
    const std::tuple rank{-LevelOf(key, queue, now, top),
                          shares.Served(key.first) + (debt == owed.end() ? 0 : debt->second),
                          front->id};
    if (best != nullptr && rank >= best_rank) continue;
    best = front;
    best_rank = rank;
  }
  return best;
}

std::unique_ptr<Sequence> WaitQueue::Take(const Sequence& next, double now, int32_t top) {
  const auto at = queues_.find(KeyOf(next));
  Queue& queue = at->second;
  const int32_t level = LevelOf(at->first, queue, now, Top(top));
  const auto place = std::find_if(queue.sequences.begin(), queue.sequences.end(),
                                  [&](const auto& s) { return s.get() == &next; });
  std::unique_ptr<Sequence> sequence = std::move(*place);
  queue.sequences.erase(place);
  queue.since = now;
  if (queue.sequences.empty()) queues_.erase(at);
  Count(*sequence, -1);
  sequence->level = level;
  return sequence;
}

void WaitQueue::RemoveLeaving(std::vector<std::unique_ptr<Sequence>>* removed) {
  for (auto at = queues_.begin(); at != queues_.end();) {
    auto& sequences = at->second.sequences;
    const auto keep = std::stable_partition(sequences.begin(), sequences.end(),
                                            [](const auto& s) { return !s->leaving; });
    for (auto gone = keep; gone != sequences.end(); ++gone) Count(**gone, -1);
    std::move(keep, sequences.end(), std::back_inserter(*removed));
    sequences.erase(keep, sequences.end());
    at = sequences.empty() ? queues_.erase(at) : std::next(at);
  }
}

void WaitQueue::RemoveAll(std::vector<std::unique_ptr<Sequence>>* removed) {
  for (auto& [key, queue] : queues_) {
    std::move(queue.sequences.begin(), queue.sequences.end(), std::back_inserter(*removed));
  }
  queues_.clear();
  by_client_.clear();
  size_ = 0;
}

Sequence* WaitQueue::Find(int64_t sequence_id) {
  for (auto& [key, queue] : queues_) {
    for (auto& sequence : queue.sequences) {
      if (sequence->id == sequence_id) return sequence.get();
    }
  }
  return nullptr;
}

}  // namespace weft
