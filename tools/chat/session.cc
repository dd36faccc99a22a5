#include "tools/chat/session.h"

#include <utility>

namespace weft::chat {
namespace {

v1::Message Turn(const char* role, std::string content) {
  v1::Message message;
  message.set_role(role);
  message.set_content(std::move(content));
  return message;
}

}  // namespace

std::string Session::Content(const std::string& question) const {
  return document_.empty() ? question : document_ + "\n\n" + question;
}

v1::ChatRequest Session::Request(const std::string& question) const {
  v1::ChatRequest request = options_;
  request.clear_messages();
  if (!system_.empty()) *request.add_messages() = Turn("system", system_);
  for (const v1::Message& turn : turns_) *request.add_messages() = turn;
  *request.add_messages() = Turn("user", Content(question));
  return request;
}

void Session::Keep(const std::string& question, const std::string& answer) {
  if (answer.empty()) return;
  turns_.push_back(Turn("user", Content(question)));
  turns_.push_back(Turn("assistant", answer));
  document_.clear();
}

void Session::Clear() {
  turns_.clear();
  document_.clear();
}

}  // namespace weft::chat
