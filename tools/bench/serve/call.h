// One request on its way, and when its tokens came.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "weft/v1/inference.grpc.pb.h"

namespace weft::bench {

double Now();  // seconds, of a clock that only runs forwards

struct Answer {
  grpc::Status status;
  double due = 0;  // when it was to be sent; Now() for all times
  double end = 0;
  std::vector<double> at;  // of each message with tokens
  std::vector<int32_t> ids;
  v1::Complete complete;

  bool ok() const { return status.ok(); }
  double ttft() const { return at.front() - due; }
  std::vector<double> Gaps() const;
};

class Call final : public grpc::ClientReadReactor<v1::GenerateResponse> {
 public:
  // On a thread of gRPC's. By then gRPC holds neither the call nor, through it, the channel: gRPC
  // (1.51) aborts the process when the last hold on a channel goes in a callback.
  using Done = std::function<void(Answer)>;

  // `due`: 0 for now.
  static std::shared_ptr<Call> Start(v1::Inference::Stub* stub, v1::GenerateRequest request,
                                     double timeout, double due, Done done);

  void Cancel() { context_.TryCancel(); }
  int64_t tokens() const { return tokens_; }
  bool ended() const { return ended_; }

  void OnReadDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

 private:
  Call(v1::GenerateRequest request, Done done)
      : request_(std::move(request)), done_(std::move(done)) {}

  const v1::GenerateRequest request_;
  Done done_;
  grpc::ClientContext context_;
  v1::GenerateResponse response_;
  Answer answer_;
  std::atomic<int64_t> tokens_{0};
  std::atomic<bool> ended_{false};
  std::shared_ptr<Call> self_;
};

// Sends it and waits.
Answer Ask(v1::Inference::Stub* stub, const v1::GenerateRequest& request, double timeout);

// All of them at once, in their order.
std::vector<Answer> AskTogether(v1::Inference::Stub* stub,
                                const std::vector<v1::GenerateRequest>& requests, double timeout);

}  // namespace weft::bench
