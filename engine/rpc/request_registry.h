// Which sequences belong to a request id, for Abort.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace weft {

class RequestRegistry {
 public:
  void Enter(const std::string& request_id, int64_t sequence) {
    std::lock_guard lock(mutex_);
    sequences_.emplace(request_id, sequence);
  }

  void Leave(const std::string& request_id, int64_t sequence) {
    std::lock_guard lock(mutex_);
    const auto [begin, end] = sequences_.equal_range(request_id);
    const auto found = std::find_if(
        begin, end, [sequence](const auto& entry) { return entry.second == sequence; });
    if (found != end) sequences_.erase(found);
  }

  std::vector<int64_t> Sequences(const std::string& request_id) const {
    std::lock_guard lock(mutex_);
    std::vector<int64_t> found;
    const auto [begin, end] = sequences_.equal_range(request_id);
    for (auto entry = begin; entry != end; ++entry) found.push_back(entry->second);
    return found;
  }

 private:
  mutable std::mutex mutex_;
  std::multimap<std::string, int64_t> sequences_;
};

}  // namespace weft
