// From what a client asked to what the engine gets: checks, defaults, tokens, a seed.
#pragma once

#include <grpcpp/support/status.h>

#include <optional>
#include <string>
#include <vector>

#include "server/api/token_text.h"
#include "server/text/model_text.h"
#include "weft/engine/v1/engine.pb.h"
#include "weft/resume/v1/resume.pb.h"
#include "weft/v1/inference.pb.h"

namespace weft::server {

// What bounds a request.
struct Limits {
  int64_t vocab_size = 0;
  int64_t max_context = 0;
  int64_t max_index_topk = 0;
};

// What becomes of a request.
struct Resolved {
  std::string id;
  engine::v1::GenerateRequest engine;  // of the first choice, but for its request_id
  int choices = 1;
  bool from_text = false;  // the prompt: it was read no further than the longest context
  StopStrings stops;
  std::optional<text::ReplySyntax> reply;  // of a chat: how its text is taken apart
  resume::v1::Record record;  // what its resume token freezes, but for what the engine admits
  // Of a request that goes on with an earlier stream; `record` is that one's then.
  bool resumed = false;
  bool begun = false;                   // something was told then
  std::vector<v1::ResumedChoice> told;  // by choice
  int scores_told = 0;
};

// Each returns OK, or INVALID_ARGUMENT with a message that names field, rule and value. A request
// id is drawn where the client gave none.
grpc::Status Resolve(const v1::GenerateRequest& request, const text::TextModel& model,
                     const Limits& limits, Resolved* out);
grpc::Status Resolve(const v1::ChatRequest& request, const text::TextModel& model,
                     const Limits& limits, Resolved* out);

grpc::Status InvalidArgument(const std::string& message);

// Whether an id can travel in metadata and logs: up to 128 visible ASCII characters.
grpc::Status CheckId(const std::string& id, const char* field);

// Whether every id is one of the model's; `field` is for the message.
template <typename Ids>
grpc::Status CheckIds(const Ids& ids, int64_t vocab_size, const std::string& field) {
  for (int i = 0; i < ids.size(); ++i) {
    if (0 <= ids[i] && ids[i] < vocab_size) continue;
    return InvalidArgument(field + "[" + std::to_string(i) + "] must be a token id in [0, " +
                           std::to_string(vocab_size) + "); got " + std::to_string(ids[i]));
  }
  return grpc::Status::OK;
}

}  // namespace weft::server
