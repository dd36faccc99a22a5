// What has been said, and how the next request is made of it.
#pragma once

#include <string>
#include <vector>

#include "weft/v1/inference.pb.h"

namespace weft::chat {

class Session {
 public:
  // Sampling, selection and thinking for every request; its messages are not used.
  explicit Session(v1::ChatRequest options) : options_(std::move(options)) {
    options_.clear_messages();
  }

  v1::ChatRequest& options() { return options_; }
  const v1::ChatRequest& options() const { return options_; }
  void set_system(std::string text) { system_ = std::move(text); }
  const std::string& system() const { return system_; }
  // Goes before the next question, two newlines between them: the order that models which read
  // documents are trained with.
  void set_document(std::string text) { document_ = std::move(text); }
  bool has_document() const { return !document_.empty(); }
  size_t turns() const { return turns_.size(); }

  v1::ChatRequest Request(const std::string& question) const;

  // Keeps a turn. A partial answer counts; without any answer the turn is dropped, and the document
  // stays for the next question.
  void Keep(const std::string& question, const std::string& answer, const std::string& reasoning);
  void Clear();  // forgets turns and document, keeps the system text

  // As a ChatRequest in JSON: what was said, the system text and the parameters. False, with *error
  // set, when the file cannot be written, or read as one; then nothing has changed.
  bool Save(const std::string& path, std::string* error) const;
  bool Load(const std::string& path, std::string* error);

 private:
  std::string Content(const std::string& question) const;
  v1::ChatRequest Said() const;

  v1::ChatRequest options_;
  std::string system_;
  std::string document_;
  std::vector<v1::Message> turns_;
};

}  // namespace weft::chat
