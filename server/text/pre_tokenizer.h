// Cuts text into the words within which BPE may merge ("pre-tokenizer" in tokenizer.json).
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string_view>
#include <vector>

#include "server/text/regex.h"

namespace weft::text {

// What becomes of the pieces that a Split pattern matches.
enum class SplitBehavior { kIsolated, kRemoved, kMergedWithPrevious, kMergedWithNext, kContiguous };

class PreTokenizer {
 public:
  // The word is only valid during the call. False: no more words are wanted.
  using Sink = std::function<bool(std::string_view word)>;

  // Throws std::runtime_error naming the unsupported feature. ByteLevel must be there, and last:
  // the byte alphabet never appears in this server, words stay bytes.
  static PreTokenizer FromJson(const nlohmann::json& pre_tokenizer);

  // Sends the words of `text`, valid UTF-8, in order. False: the sink wanted no more.
  bool Split(std::string_view text, RegexScratch* scratch, const Sink& sink) const;

 private:
  // Each stage works on every piece of the one before.
  struct Stage {
    std::optional<Regex> regex;  // none: keep pieces whole
    SplitBehavior behavior = SplitBehavior::kIsolated;
    bool invert = false;        // the matches are the text between the pattern's matches
    bool prefix_space = false;  // a piece gets a leading space unless it has one
  };

  // Text, and what the patterns see of it: the same bytes but for ReplaceNewCharacters().
  struct Piece {
    std::string_view text;
    std::string_view seen;
  };

  static Stage SplitStage(const nlohmann::json& json);
  static Stage DigitsStage(const nlohmann::json& json);
  static Stage ByteLevelStage(const nlohmann::json& json);
  bool Run(size_t stage, Piece piece, RegexScratch* scratch, const Sink& sink) const;
  bool RunRegex(size_t stage, Piece piece, RegexScratch* scratch, const Sink& sink) const;

  std::vector<Stage> stages_;
};

}  // namespace weft::text
