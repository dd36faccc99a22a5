#include "tools/chat/session.h"

#include <google/protobuf/util/json_util.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "tools/chat/text_file.h"

namespace weft::chat {

namespace fs = std::filesystem;
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

v1::ChatRequest Session::Said() const {
  v1::ChatRequest request = options_;
  if (!system_.empty()) *request.add_messages() = Turn("system", system_);
  for (const v1::Message& turn : turns_) *request.add_messages() = turn;
  return request;
}

v1::ChatRequest Session::Request(const std::string& question) const {
  v1::ChatRequest request = Said();
  *request.add_messages() = Turn("user", Content(question));
  request.set_prefill_progress(true);
  return request;
}

void Session::Keep(const std::string& question, const std::string& answer,
                   const std::string& reasoning) {
  if (answer.empty()) return;
  turns_.push_back(Turn("user", Content(question)));
  turns_.push_back(Turn("assistant", answer));
  turns_.back().set_reasoning_content(reasoning);
  document_.clear();
}

void Session::Clear() {
  turns_.clear();
  document_.clear();
}

bool Session::Save(const std::string& path, std::string* error) const {
  google::protobuf::util::JsonPrintOptions print;
  print.add_whitespace = true;
  print.preserve_proto_field_names = true;
  std::string json;
  const auto status = google::protobuf::util::MessageToJsonString(Said(), &json, print);
  // Aside first, where the name is a file's: what was saved before is kept where this fails.
  std::error_code ignored;
  const fs::file_type type = fs::symlink_status(path, ignored).type();
  const bool aside = type == fs::file_type::regular || type == fs::file_type::not_found;
  const std::string to = aside ? path + ".part" : path;
  std::ofstream file(to, std::ios::binary);
  file << json;
  file.close();
  if (status.ok() && file && (!aside || std::rename(to.c_str(), path.c_str()) == 0)) return true;
  *error = "cannot write '" + path +
           "': " + (status.ok() ? std::string(std::strerror(errno)) : status.ToString());
  if (aside) fs::remove(to, ignored);
  return false;
}

bool Session::Load(const std::string& path, std::string* error) {
  std::string json;
  if (!ReadText(path, &json, error)) return false;
  v1::ChatRequest said;
  if (const auto status = google::protobuf::util::JsonStringToMessage(json, &said); !status.ok()) {
    *error = "'" + path + "' must be a conversation as /save writes it; " + status.ToString();
    return false;
  }
  turns_.assign(said.messages().begin(), said.messages().end());
  system_.clear();
  if (!turns_.empty() && turns_.front().role() == "system") {
    system_ = turns_.front().content();
    turns_.erase(turns_.begin());
  }
  document_.clear();
  said.clear_messages();
  options_ = std::move(said);
  return true;
}

}  // namespace weft::chat
