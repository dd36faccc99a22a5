#include "tools/bench/serve/call.h"

#include <chrono>

#include "tools/bench/serve/calls.h"

namespace weft::bench {

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::vector<double> Answer::Gaps() const {
  std::vector<double> gaps;
  for (size_t i = 1; i < at.size(); ++i) gaps.push_back(at[i] - at[i - 1]);
  return gaps;
}

std::shared_ptr<Call> Call::Start(v1::Inference::Stub* stub, v1::GenerateRequest request,
                                  double timeout, double due, Done done) {
  std::shared_ptr<Call> call(new Call(std::move(request), std::move(done)));
  call->answer_.due = due > 0 ? due : Now();
  call->context_.set_deadline(std::chrono::system_clock::now() +
                              std::chrono::duration_cast<std::chrono::system_clock::duration>(
                                  std::chrono::duration<double>(timeout)));
  stub->async()->Generate(&call->context_, &call->request_, call.get());
  call->StartRead(&call->response_);
  call->self_ = call;
  call->StartCall();
  return call;
}

void Call::OnReadDone(bool ok) {
  if (!ok) return;
  if (response_.has_delta() && response_.delta().token_ids_size() > 0) {
    const auto& ids = response_.delta().token_ids();
    answer_.at.push_back(Now());
    answer_.ids.insert(answer_.ids.end(), ids.begin(), ids.end());
    tokens_ += ids.size();
  } else if (response_.has_complete()) {
    answer_.complete = response_.complete();
  }
  StartRead(&response_);
}

void Call::OnDone(const grpc::Status& status) {
  answer_.status = status;
  answer_.end = Now();
  ended_ = true;
  const Done done = std::move(done_);
  Answer answer = std::move(answer_);
  self_.reset();  // `this` is gone from here on, and its hold on the channel
  done(std::move(answer));
}

std::vector<Answer> AskTogether(v1::Inference::Stub* stub,
                                const std::vector<v1::GenerateRequest>& requests, double timeout) {
  Calls calls(stub, requests.size(), timeout);
  for (size_t i = 0; i < requests.size(); ++i) calls.Send(i, requests[i]);
  return calls.Finish();
}

Answer Ask(v1::Inference::Stub* stub, const v1::GenerateRequest& request, double timeout) {
  return AskTogether(stub, {request}, timeout).front();
}

}  // namespace weft::bench
