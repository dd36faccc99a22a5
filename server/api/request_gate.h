// Counts the requests in flight, and closes the door when the server drains.
#pragma once

#include <grpcpp/support/status.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
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
    // Ends it with this status; called with the gate locked.
    virtual void Abort(const grpc::Status& status) = 0;
    virtual const std::string& request_id() const = 0;
    virtual uint64_t nonce() const = 0;  // the same of all streams of one request
    // Ends it when its client has read nothing for so long; called with the gate locked.
    virtual void EndIfStalled(std::chrono::duration<double> limit) = 0;
  };

  bool Enter(Guest* guest);  // false: closed
  void Leave(Guest* guest);

  void Close();
  bool closed() const;
  int running() const;
  bool WaitUntilEmpty(std::chrono::milliseconds time);  // false: some are left
  void AbortAll(const grpc::Status& status);
  // Those with this id, if any; ids need not be unique.
  void Abort(const std::string& request_id, const grpc::Status& status);
  void EndStalled(std::chrono::duration<double> limit);
  // The earlier streams of a request that now has another.
  void AbortStreams(uint64_t nonce, const grpc::Status& status);

 private:
  mutable std::mutex mutex_;
  std::condition_variable left_;
  std::unordered_set<Guest*> guests_;
  bool closed_ = false;
};

}  // namespace weft::server
