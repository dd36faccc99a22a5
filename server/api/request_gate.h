// Counts the requests in flight, and closes the door when the server drains.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <unordered_set>

namespace weft::server {

class RequestGate {
 public:
  // A request in flight.
  class Guest {
   public:
    virtual ~Guest() = default;
    // Ends it with UNAVAILABLE and this message; called with the gate locked.
    virtual void Abort(const std::string& why) = 0;
  };

  bool Enter(Guest* guest);  // false: closed
  void Leave(Guest* guest);

  void Close();
  bool closed() const;
  int running() const;
  bool WaitUntilEmpty(std::chrono::milliseconds time);  // false: some are left
  void AbortAll(const std::string& why);

 private:
  mutable std::mutex mutex_;
  std::condition_variable left_;
  std::unordered_set<Guest*> guests_;
  bool closed_ = false;
};

}  // namespace weft::server
