#include "server/text/pre_tokenizer.h"

#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <utility>

#include "server/text/shown.h"
#include "server/text/unicode_updates.h"
#include "server/text/utf8.h"

namespace weft::text {
namespace {

using Json = nlohmann::json;

// ByteLevel's built-in split, the one of GPT-2.
constexpr std::string_view kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

SplitBehavior ParseBehavior(const std::string& name) {
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  throw std::runtime_error("pre_tokenizer: Split behavior '" + ShownText(name) +
                           "' is not supported");
}

// Whether a piece joins the piece before it.
bool Joins(SplitBehavior behavior, bool previous_is_match, bool is_match) {
  switch (behavior) {
    case SplitBehavior::kMergedWithPrevious:
      return is_match && !previous_is_match;
    case SplitBehavior::kMergedWithNext:
      return !is_match && previous_is_match;
    case SplitBehavior::kContiguous:
      return is_match == previous_is_match;
    case SplitBehavior::kIsolated:
    case SplitBehavior::kRemoved:
      return false;
  }
  return false;
}

// Receives adjacent pieces, matched and not, and sends on what the behavior makes of them. False:
// no more are wanted.
template <typename Emit>
class Joiner {
 public:
  Joiner(SplitBehavior behavior, Emit emit) : behavior_(behavior), emit_(std::move(emit)) {}

  bool Add(Range range, bool is_match) {
    bool more = true;
    if (!IsEmpty() && Joins(behavior_, pending_is_match_, is_match)) {
      pending_.end = range.end;
    } else {
      more = Finish();
      pending_ = range;
    }
    pending_is_match_ = is_match;
    return more;
  }

  bool Finish() {
    if (IsEmpty() || (behavior_ == SplitBehavior::kRemoved && pending_is_match_)) return true;
    return emit_(pending_);
  }

 private:
  bool IsEmpty() const { return pending_.begin == pending_.end; }

  SplitBehavior behavior_;
  Emit emit_;
  Range pending_{};
  bool pending_is_match_ = false;
};

}  // namespace

PreTokenizer PreTokenizer::FromJson(const Json& pre_tokenizer) {
  if (!pre_tokenizer.is_object()) {
    throw std::runtime_error("pre_tokenizer: must be an object; got " + Shown(pre_tokenizer));
  }
  const Json parts = pre_tokenizer.at("type") == "Sequence" ? pre_tokenizer.at("pretokenizers")
                                                            : Json::array({pre_tokenizer});
  PreTokenizer result;
  bool byte_level = false;
  for (const Json& part : parts) {
    const std::string type = part.at("type");
    if (byte_level) {
      throw std::runtime_error("pre_tokenizer: ByteLevel must be last; '" + ShownText(type) +
                               "' follows it");
    }
    if (type == "Split") {
      result.stages_.push_back(SplitStage(part));
    } else if (type == "Digits") {
      result.stages_.push_back(DigitsStage(part));
    } else if (type == "ByteLevel") {
      result.stages_.push_back(ByteLevelStage(part));
      byte_level = true;
    } else {
      throw std::runtime_error("pre_tokenizer: type '" + ShownText(type) + "' is not supported");
    }
  }
  if (!byte_level) throw std::runtime_error("pre_tokenizer: has no ByteLevel, which is required");
  return result;
}

PreTokenizer::Stage PreTokenizer::SplitStage(const Json& json) {
  Stage stage;
  const Json& pattern = json.at("pattern");
  if (pattern.contains("Regex")) {
    stage.regex = Regex(pattern["Regex"].get<std::string>(), Regex::Syntax::kOniguruma);
  } else if (pattern.contains("String")) {
    stage.regex = Regex(pattern["String"].get<std::string>(), Regex::Syntax::kLiteral);
  } else {
    throw std::runtime_error("pre_tokenizer: Split pattern must be Regex or String; got " +
                             Shown(pattern));
  }
  stage.behavior = ParseBehavior(json.at("behavior"));
  stage.invert = json.value("invert", false);
  return stage;
}

PreTokenizer::Stage PreTokenizer::DigitsStage(const Json& json) {
  Stage stage;
  stage.regex = Regex("\\p{N}", Regex::Syntax::kPcre);
  stage.behavior = json.value("individual_digits", false) ? SplitBehavior::kIsolated
                                                          : SplitBehavior::kContiguous;
  return stage;
}

PreTokenizer::Stage PreTokenizer::ByteLevelStage(const Json& json) {
  Stage stage;
  stage.prefix_space = json.at("add_prefix_space").get<bool>();
  if (json.value("use_regex", true)) {
    stage.regex = Regex(kByteLevelPattern, Regex::Syntax::kOniguruma);
  }
  return stage;
}

bool PreTokenizer::Split(std::string_view text, RegexScratch* scratch, const Sink& sink) const {
  if (text.empty()) return true;
  std::string replaced;
  return Run(0, {text, ReplaceNewCharacters(text, &replaced) ? replaced : text}, scratch, sink);
}

bool PreTokenizer::Run(size_t stage, Piece piece, RegexScratch* scratch, const Sink& sink) const {
  if (stage == stages_.size()) return sink(piece.text);
  if (!stages_[stage].prefix_space || piece.text[0] == ' ') {
    return RunRegex(stage, piece, scratch, sink);
  }
  std::string text(1, ' ');
  std::string seen(1, ' ');
  return RunRegex(stage, {text.append(piece.text), seen.append(piece.seen)}, scratch, sink);
}

bool PreTokenizer::RunRegex(size_t stage, Piece piece, RegexScratch* scratch,
                            const Sink& sink) const {
  const Stage& s = stages_[stage];
  if (!s.regex) return Run(stage + 1, piece, scratch, sink);
  Joiner joiner(s.behavior, [&](Range range) {
    const size_t length = range.end - range.begin;
    return Run(stage + 1,
               {piece.text.substr(range.begin, length), piece.seen.substr(range.begin, length)},
               scratch, sink);
  });
  const size_t size = piece.seen.size();
  size_t done = 0;
  size_t from = 0;
  Range match{};
  while (from <= size && scratch->Find(*s.regex, piece.seen, from, &match)) {
    if (match.begin > done && !joiner.Add({done, match.begin}, s.invert)) return false;
    if (!joiner.Add(match, !s.invert)) return false;
    done = from = match.end;
    // An empty match must not be found again.
    if (match.begin == match.end) {
      from += from < size ? NextUtf8(piece.seen.substr(from)).length : 1;
    }
  }
  if (done < size && !joiner.Add({done, size}, s.invert)) return false;
  return joiner.Finish();
}

}  // namespace weft::text
