// Finds added tokens ("<｜User｜>", "</think>") in text before anything else cuts it.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "server/text/regex.h"

namespace weft::text {

struct AddedToken {
  int32_t id = -1;
  std::string content;
  bool special = false;      // dropped from decoded text on request
  bool normalized = false;   // looked for after the others, in what they left
  bool lstrip = false;       // takes the white space before it
  bool rstrip = false;       // takes the white space after it
  bool single_word = false;  // only between characters that are not of a word
};

// Byte trie that finds the longest of a set of strings at the leftmost place.
class AddedTokenTrie {
 public:
  AddedTokenTrie() : nodes_(1) {}

  void Insert(std::string_view content, size_t token);

  // The first match at or after `from`: *token is what was inserted.
  bool Find(std::string_view text, size_t from, Range* match, size_t* token) const;

 private:
  static constexpr int32_t kNone = -1;
  struct Node {
    int32_t token = kNone;
    std::vector<std::pair<char, int32_t>> children;
  };
  int32_t Child(int32_t node, char byte) const;

  std::vector<Node> nodes_;
  bool starts_[256] = {};  // bytes that some content begins with
};

class AddedTokens {
 public:
  // A stretch of text with the id of the added token it is; no id: plain text. False: no more is
  // wanted.
  using Sink = std::function<bool(std::string_view piece, std::optional<int32_t> id)>;

  AddedTokens() = default;

  // `added_tokens` as in tokenizer.json. Throws std::runtime_error naming token and rule.
  static AddedTokens FromJson(const nlohmann::json& added_tokens);

  // Sends the non-empty pieces of `text` in order. False: the sink wanted no more.
  bool Split(std::string_view text, RegexScratch* scratch, const Sink& sink) const;

  const std::vector<AddedToken>& tokens() const { return tokens_; }
  const AddedToken* FindContent(std::string_view content) const;

 private:
  bool SplitPass(const AddedTokenTrie& trie, std::string_view text, RegexScratch* scratch,
                 const Sink& sink) const;
  bool IsWholeWord(std::string_view text, Range match, RegexScratch* scratch) const;

  std::vector<AddedToken> tokens_;
  std::unordered_map<std::string, size_t> by_content_;
  AddedTokenTrie first_;   // tokens that are not `normalized`
  AddedTokenTrie second_;  // tokens that are
};

}  // namespace weft::text
