#include "server/api/refusals.h"

#include <string>

namespace weft::server {

using grpc::Status;
using grpc::StatusCode;

Status Draining() { return {StatusCode::UNAVAILABLE, "the server is draining"}; }

Status TakenOver() { return {StatusCode::ABORTED, "the client resumed it in another stream"}; }

Status UnreadableText(const std::exception& error) {
  return {StatusCode::INTERNAL, std::string("the text cannot be read: ") + error.what()};
}

Status TooManyTexts() {
  return {StatusCode::RESOURCE_EXHAUSTED,
          "too many long texts wait to be tokenized: try again in 1 s"};
}

void AdviseRetry(int64_t ms, grpc::CallbackServerContext* context) {
  if (ms > 0) context->AddTrailingMetadata("retry-after-ms", std::to_string(ms));
}

}  // namespace weft::server
