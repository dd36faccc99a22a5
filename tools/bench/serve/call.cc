#include "tools/bench/serve/call.h"

#include <chrono>
#include <future>

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
  call->self_ = call;
  call->answer_.due = due > 0 ? due : Now();
  call->context_.set_deadline(std::chrono::system_clock::now() +
                              std::chrono::duration_cast<std::chrono::system_clock::duration>(
                                  std::chrono::duration<double>(timeout)));
  stub->async()->Generate(&call->context_, &call->request_, call.get());
  call->StartRead(&call->response_);
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
  const std::shared_ptr<Call> self = std::move(self_);
  done_(std::move(answer_));
}

std::vector<Answer> AskTogether(v1::Inference::Stub* stub,
                                const std::vector<v1::GenerateRequest>& requests, double timeout) {
  std::vector<std::promise<Answer>> promises(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    Call::Start(stub, requests[i], timeout, 0,
                [&promise = promises[i]](Answer answer) { promise.set_value(std::move(answer)); });
  }
  std::vector<Answer> answers;
  for (auto& promise : promises) answers.push_back(promise.get_future().get());
  return answers;
}

Answer Ask(v1::Inference::Stub* stub, const v1::GenerateRequest& request, double timeout) {
  return AskTogether(stub, {request}, timeout).front();
}

}  // namespace weft::bench
