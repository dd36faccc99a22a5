// Turns an engine's events into what the client gets: tokens into text up to a stop string, once
// each.
#pragma once

#include <grpcpp/support/status.h>

#include <chrono>
#include <vector>

#include "server/api/reply_text.h"
#include "server/api/request_state.h"
#include "server/api/token_text.h"
#include "weft/v1/inference.pb.h"

namespace weft::server {

class Answer {
 public:
  // Both must outlive this.
  Answer(const text::Tokenizer& tokenizer, const StopStrings& stops, RequestState* state);

  // Goes on behind what an earlier stream told; before all else. Not OK when that cannot be.
  grpc::Status Resume(const v1::ResumedChoice& told);

  // Appends the replies that `event` brings. Not OK when the engine broke its protocol, or what was
  // told before turns out not to fit.
  grpc::Status Take(const engine::v1::GenerateEvent& event,
                    std::vector<v1::GenerateResponse>* replies);

  // The engine went before it told the end of an answer that a stop string ended: completes it
  // without the engine's figures.
  grpc::Status CompleteAlone(std::vector<v1::GenerateResponse>* replies);

  bool complete() const { return complete_; }
  bool at_stop_string() const { return text_.stopped(); }              // no further token is wanted
  const std::string& finish_reason() const { return finish_reason_; }  // once complete

  // "output=7 ttft=0.120s decode=33.1tok/s": for the log.
  std::string Figures() const;

 private:
  grpc::Status TakeToken(const engine::v1::Token& token,
                         std::vector<v1::GenerateResponse>* replies);
  grpc::Status TakeScores(const engine::v1::Scores& scores,
                          std::vector<v1::GenerateResponse>* replies);
  void TakeSelected(const engine::v1::SelectedTokens& selected);
  void TellSelected(int output_index, std::vector<v1::GenerateResponse>* replies);
  grpc::Status TakeFinished(const engine::v1::Finished& finished,
                            std::vector<v1::GenerateResponse>* replies);
  // *complete: the last of the replies.
  grpc::Status Complete(engine::v1::FinishReason reason, int32_t stop_id,
                        std::vector<v1::GenerateResponse>* replies, v1::Complete** complete);
  grpc::Status TellRest(std::vector<v1::GenerateResponse>* replies);
  grpc::Status Tell(v1::Delta delta, std::vector<v1::GenerateResponse>* replies);
  bool IsStop(int32_t id) const;

  RequestState* state_;
  TokenText text_;
  ReplyText reply_;
  int told_before_ = 0;  // tokens that an earlier stream told
  int64_t ahead_ = 0;    // bytes that an earlier stream told of tokens that are still to come
  // Of the token that is due, and told with it: an engine that dies between them tells both again
  // to the next.
  std::vector<engine::v1::SelectedTokens> selected_;
  bool complete_ = false;
  std::string finish_reason_;
  std::chrono::steady_clock::time_point first_token_;
  std::chrono::steady_clock::time_point last_token_;
};

}  // namespace weft::server
