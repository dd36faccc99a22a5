#include "tools/client/position.h"

namespace weft::client {

v1::ResumedChoice* Position::Choice(int index) {
  while (resume_.choices_size() <= index) resume_.add_choices();
  return resume_.mutable_choices(index);
}

void Position::Take(const v1::GenerateResponse& response) {
  if (response.has_started()) {
    resume_.set_token(response.started().resume_token());
  } else if (response.has_delta()) {
    const v1::Delta& delta = response.delta();
    v1::ResumedChoice* choice = Choice(response.index());
    choice->mutable_token_ids()->MergeFrom(delta.token_ids());
    size_t bytes = delta.text().size() + delta.reasoning().size();
    for (const v1::ToolCallDelta& call : delta.tool_calls()) {
      bytes += call.name().size() + call.arguments().size();
    }
    choice->set_text_bytes(choice->text_bytes() + static_cast<int64_t>(bytes));
  } else if (response.has_scores()) {
    resume_.set_scores(resume_.scores() + response.scores().logprobs_size());
  } else if (response.has_complete()) {
    Choice(response.index())->set_complete(true);
  }
}

}  // namespace weft::client
