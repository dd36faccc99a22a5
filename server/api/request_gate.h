// Counts the requests in flight, and closes the door when the server drains.
#pragma once

#include <grpcpp/support/status.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <unordered_map>

namespace weft::server {

class RequestGate {
 public:
  // A request in flight.
  class Guest {
   public:
    virtual ~Guest() = default;
    // Ends it with this status; called with the gate locked.
    virtual void Abort(const grpc::Status& status) = 0;
    virtual std::string request_id() const = 0;
    virtual uint64_t nonce() const = 0;  // the same of all streams of one request; 0: not known yet
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
  // `guest`, whose nonce is known now, goes on with an earlier stream: ends those of its nonce that
  // entered before it. False where one entered after it, which has its place.
  bool TakeOver(Guest* guest, const grpc::Status& status);

 private:
  mutable std::mutex mutex_;
  std::condition_variable left_;
  std::unordered_map<Guest*, uint64_t> guests_;  // with their order of entry
  uint64_t entries_ = 0;
  bool closed_ = false;
};

}  // namespace weft::server
