#include "server/text/added_tokens.h"

#include <nlohmann/json.hpp>
#include <stdexcept>

#include "server/text/shown.h"
#include "server/text/utf8.h"

namespace weft::text {
namespace {

const Regex& WhiteSpace() {
  static const Regex regex("\\p{wspace}", Regex::Syntax::kPcre);
  return regex;
}

// A word character as Unicode TR18 defines it; PCRE2's \w is narrower.
const Regex& WordCharacter() {
  static const Regex regex("[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\p{Join_Control}]",
                           Regex::Syntax::kPcre);
  return regex;
}

// The start of the character that ends at `end`, which must not be 0.
size_t PreviousCharacter(std::string_view text, size_t end) {
  size_t begin = end - 1;
  while (begin > 0 && (static_cast<uint8_t>(text[begin]) & 0xC0) == 0x80) --begin;
  return begin;
}

bool Matches(const Regex& regex, std::string_view character, RegexScratch* scratch) {
  Range match{};
  return scratch->Find(regex, character, 0, &match);
}

size_t SkipSpaceBack(std::string_view text, size_t end, size_t limit, RegexScratch* scratch) {
  while (end > limit) {
    const size_t begin = PreviousCharacter(text, end);
    if (!Matches(WhiteSpace(), text.substr(begin, end - begin), scratch)) break;
    end = begin;
  }
  return end;
}

size_t SkipSpace(std::string_view text, size_t begin, RegexScratch* scratch) {
  while (begin < text.size()) {
    const size_t length = NextUtf8(text.substr(begin)).length;
    if (!Matches(WhiteSpace(), text.substr(begin, length), scratch)) break;
    begin += length;
  }
  return begin;
}

}  // namespace

int32_t AddedTokenTrie::Child(int32_t node, char byte) const {
  for (const auto& [label, child] : nodes_[static_cast<size_t>(node)].children) {
    if (label == byte) return child;
  }
  return kNone;
}

void AddedTokenTrie::Insert(std::string_view content, size_t token) {
  starts_[static_cast<uint8_t>(content[0])] = true;
  int32_t node = 0;
  for (const char byte : content) {
    int32_t child = Child(node, byte);
    if (child == kNone) {
      child = static_cast<int32_t>(nodes_.size());
      nodes_.emplace_back();
      nodes_[static_cast<size_t>(node)].children.emplace_back(byte, child);
    }
    node = child;
  }
  nodes_[static_cast<size_t>(node)].token = static_cast<int32_t>(token);
}

bool AddedTokenTrie::Find(std::string_view text, size_t from, Range* match, size_t* token) const {
  for (size_t begin = from; begin < text.size(); ++begin) {
    if (!starts_[static_cast<uint8_t>(text[begin])]) continue;
    int32_t node = 0;
    int32_t longest = kNone;
    for (size_t end = begin; end < text.size(); ++end) {
      node = Child(node, text[end]);
      if (node == kNone) break;
      if (nodes_[static_cast<size_t>(node)].token == kNone) continue;
      longest = nodes_[static_cast<size_t>(node)].token;
      *match = {begin, end + 1};
    }
    if (longest == kNone) continue;
    *token = static_cast<size_t>(longest);
    return true;
  }
  return false;
}

AddedTokens AddedTokens::FromJson(const nlohmann::json& added_tokens) {
  AddedTokens result;
  for (const nlohmann::json& json : added_tokens) {
    AddedToken token;
    token.id = json.at("id").get<int32_t>();
    token.content = json.at("content").get<std::string>();
    token.special = json.value("special", false);
    token.normalized = json.value("normalized", !token.special);
    token.lstrip = json.value("lstrip", false);
    token.rstrip = json.value("rstrip", false);
    token.single_word = json.value("single_word", false);
    if (token.id < 0 || token.content.empty()) {
      throw std::runtime_error("added_tokens: id must be >= 0 and content not empty; got " +
                               Shown(json));
    }
    const size_t index = result.tokens_.size();
    if (!result.by_content_.emplace(token.content, index).second) {
      throw std::runtime_error("added_tokens: content must be unique; got '" +
                               ShownText(token.content) + "' twice");
    }
    (token.normalized ? result.second_ : result.first_).Insert(token.content, index);
    result.tokens_.push_back(std::move(token));
  }
  return result;
}

const AddedToken* AddedTokens::FindContent(std::string_view content) const {
  const auto it = by_content_.find(std::string(content));
  return it == by_content_.end() ? nullptr : &tokens_[it->second];
}

bool AddedTokens::Split(std::string_view text, RegexScratch* scratch, const Sink& sink) const {
  return SplitPass(first_, text, scratch, [&](std::string_view piece, std::optional<int32_t> id) {
    return id ? sink(piece, id) : SplitPass(second_, piece, scratch, sink);
  });
}

bool AddedTokens::SplitPass(const AddedTokenTrie& trie, std::string_view text,
                            RegexScratch* scratch, const Sink& sink) const {
  size_t done = 0;
  size_t from = 0;
  Range match{};
  size_t index = 0;
  while (trie.Find(text, from, &match, &index)) {
    const AddedToken& token = tokens_[index];
    from = match.end;
    if (token.single_word && !IsWholeWord(text, match, scratch)) continue;
    if (token.lstrip) match.begin = SkipSpaceBack(text, match.begin, done, scratch);
    if (token.rstrip) match.end = SkipSpace(text, match.end, scratch);
    if (done < match.begin && !sink(text.substr(done, match.begin - done), std::nullopt)) {
      return false;
    }
    if (!sink(text.substr(match.begin, match.end - match.begin), token.id)) return false;
    done = match.end;
  }
  return done == text.size() || sink(text.substr(done), std::nullopt);
}

bool AddedTokens::IsWholeWord(std::string_view text, Range match, RegexScratch* scratch) const {
  if (match.begin > 0) {
    const size_t begin = PreviousCharacter(text, match.begin);
    if (Matches(WordCharacter(), text.substr(begin, match.begin - begin), scratch)) return false;
  }
  if (match.end == text.size()) return true;
  const std::string_view rest = text.substr(match.end);
  return !Matches(WordCharacter(), rest.substr(0, NextUtf8(rest).length), scratch);
}

}  // namespace weft::text
