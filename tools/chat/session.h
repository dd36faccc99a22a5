// What has been said, and how the next request is made of it.
#pragma once

#include <string>
#include <vector>

#include "weft/v1/inference.pb.h"

namespace weft::chat {

class Session {
 public:
  // Sampling and selection for every request; its messages are not used.
  explicit Session(v1::ChatRequest options) : options_(std::move(options)) {}

  void set_system(std::string text) { system_ = std::move(text); }
  // Goes before the next question, two newlines between them: the order that models which read
  // documents are trained with.
  void set_document(std::string text) { document_ = std::move(text); }
  bool has_document() const { return !document_.empty(); }

  v1::ChatRequest Request(const std::string& question) const;

  // Keeps a turn. A partial answer counts; without any answer the turn is dropped, and the document
  // stays for the next question.
  void Keep(const std::string& question, const std::string& answer);
  void Clear();  // forgets turns and document, keeps the system text

 private:
  std::string Content(const std::string& question) const;

  v1::ChatRequest options_;
  std::string system_;
  std::string document_;
  std::vector<v1::Message> turns_;
};

}  // namespace weft::chat
