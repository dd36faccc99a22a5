#include "server/text/tokenizer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <unordered_map>
#include <utility>

#include "server/text/json_file.h"
#include "server/text/shown.h"
#include "server/text/utf8.h"

namespace weft::text {
namespace {

using Json = nlohmann::json;

// Words longer than this rarely come twice; the cache stays small in bytes and entries.
constexpr size_t kMaxCachedWord = 48;
constexpr size_t kMaxCacheEntries = 1 << 16;

void CheckNormalizer(const Json& normalizer) {
  if (normalizer.is_null()) return;
  const Json type = normalizer.value("type", Json());
  if (type != "Sequence") {
    throw std::runtime_error("normalizer: type " + Shown(type) + " is not supported");
  }
  for (const Json& part : normalizer.at("normalizers")) CheckNormalizer(part);
}

void CheckDecoder(const Json& decoder) {
  const Json type = decoder.is_object() ? decoder.value("type", Json()) : decoder;
  if (type != "ByteLevel") {
    throw std::runtime_error("decoder: type must be \"ByteLevel\"; got " + Shown(type));
  }
}

}  // namespace

// One call of Encode: the scratch memory, and the words met so far. What adds ids says whether more
// are wanted.
class Tokenizer::Encoder {
 public:
  Encoder(const Tokenizer& tokenizer, size_t most, std::stop_token stop, std::vector<int32_t>* out)
      : tokenizer_(tokenizer),
        most_(most),
        stop_(std::move(stop)),
        out_(out),
        on_word_([this](std::string_view word) {
          Word(word);
          return more();
        }) {}

  RegexScratch* regex_scratch() { return &regex_scratch_; }

  bool PlainText(std::string_view text) {
    return tokenizer_.pre_tokenizer_.Split(text, &regex_scratch_, on_word_);
  }
  bool Added(int32_t id) {
    out_->push_back(id);
    return more();
  }

 private:
  struct Ids {
    size_t begin;  // in *out_
    size_t count;
  };
  struct StringHash {
    using is_transparent = void;
    size_t operator()(std::string_view s) const { return std::hash<std::string_view>()(s); }
  };

  bool more() const { return out_->size() <= most_ && !stop_.stop_requested(); }

  void Word(std::string_view word) {
    // Enough of a word to be too much; all of one may be the whole text.
    const size_t left = most_ - std::min(most_, out_->size());
    if (word.size() / tokenizer_.longest_token_ > left) {
      word = word.substr(0, (left + 1) * tokenizer_.longest_token_);
    }
    if (word.size() > kMaxCachedWord) {
      return tokenizer_.bpe_.Encode(word, stop_, &bpe_scratch_, out_);
    }
    const size_t begin = out_->size();
    if (const auto it = cache_.find(word); it != cache_.end()) {
      const Ids ids = it->second;
      out_->resize(begin + ids.count);
      std::copy_n(out_->begin() + static_cast<ptrdiff_t>(ids.begin), ids.count,
                  out_->begin() + static_cast<ptrdiff_t>(begin));
      return;
    }
    tokenizer_.bpe_.Encode(word, stop_, &bpe_scratch_, out_);
    if (cache_.size() < kMaxCacheEntries) {
      cache_.emplace(word, Ids{begin, out_->size() - begin});
    }
  }

  const Tokenizer& tokenizer_;
  const size_t most_;
  const std::stop_token stop_;
  std::vector<int32_t>* out_;
  PreTokenizer::Sink on_word_;
  RegexScratch regex_scratch_;
  BpeScratch bpe_scratch_;
  // The output itself holds the tokens of a word met before.
  std::unordered_map<std::string, Ids, StringHash, std::equal_to<>> cache_;
};

Tokenizer Tokenizer::FromFile(const std::filesystem::path& tokenizer_json) {
  const Json json = LoadJson(tokenizer_json);
  try {
    return FromJson(json);
  } catch (const Json::exception& error) {  // its messages quote the file
    throw std::runtime_error(tokenizer_json.string() + ": " + ShownText(error.what(), 200));
  } catch (const std::exception& error) {
    throw std::runtime_error(tokenizer_json.string() + ": " + error.what());
  }
}

Tokenizer Tokenizer::FromJson(const Json& json) {
  CheckNormalizer(json.value("normalizer", Json()));
  CheckDecoder(json.value("decoder", Json()));
  // The post-processor is not read: for byte-level models it moves offsets or adds BOS, and neither
  // belongs to Encode.
  Tokenizer tokenizer;
  tokenizer.bpe_ = Bpe::FromJson(json.at("model"));
  tokenizer.pre_tokenizer_ = PreTokenizer::FromJson(json.at("pre_tokenizer"));
  tokenizer.added_ = AddedTokens::FromJson(json.value("added_tokens", Json::array()));
  tokenizer.AddAddedTokens();
  return tokenizer;
}

void Tokenizer::AddAddedTokens() {
  token_bytes_ = bpe_.token_bytes();
  special_.resize(token_bytes_.size());
  for (const std::string& bytes : token_bytes_)
    longest_token_ = std::max(longest_token_, bytes.size());
  for (const AddedToken& token : added_.tokens()) {
    const size_t id = static_cast<size_t>(token.id);
    // A hole is harmless, a corrupted id would allocate gigabytes.
    if (id > token_bytes_.size() + (size_t{1} << 20)) {
      throw std::runtime_error("added_tokens: id of '" + ShownText(token.content) +
                               "' is far beyond the vocabulary; got " + std::to_string(id));
    }
    if (id >= token_bytes_.size()) {
      token_bytes_.resize(id + 1);
      special_.resize(id + 1);
    }
    const std::optional<int32_t> in_vocabulary = bpe_.IdOfSpelling(token.content);
    const bool taken = !token_bytes_[id].empty() && in_vocabulary != token.id;
    if (taken || (in_vocabulary && *in_vocabulary != token.id)) {
      throw std::runtime_error("added_tokens: '" + ShownText(token.content) +
                               "' must have the id of its " + "vocab entry, or a free one; got " +
                               std::to_string(id));
    }
    token_bytes_[id] = token.content;
    special_[id] = token.special;
  }
}

std::vector<int32_t> Tokenizer::Encode(std::string_view utf8, bool parse_special, size_t most,
                                       std::stop_token stop) const {
  if (!IsValidUtf8(utf8)) return Encode(ToValidUtf8(utf8), parse_special, most, std::move(stop));
  std::vector<int32_t> ids;
  Encoder encoder(*this, most, std::move(stop), &ids);
  if (!parse_special) {
    encoder.PlainText(utf8);
    return ids;
  }
  added_.Split(utf8, encoder.regex_scratch(),
               [&](std::string_view piece, std::optional<int32_t> id) {
                 return id ? encoder.Added(*id) : encoder.PlainText(piece);
               });
  return ids;
}

std::vector<int32_t> Tokenizer::Encode(const std::vector<TextPart>& parts, size_t most) const {
  std::vector<int32_t> ids;
  Encoder encoder(*this, most, {}, &ids);
  std::string plain;  // what BPE sees in one piece, wherever it came from
  const auto flush = [&] {
    const bool more = encoder.PlainText(plain);
    plain.clear();
    return more;
  };
  for (const TextPart& part : parts) {
    std::string mended;
    const bool valid = IsValidUtf8(part.text);
    if (!valid) mended = ToValidUtf8(part.text);
    const std::string& utf8 = valid ? part.text : mended;
    if (part.is_literal) {
      plain += utf8;
      continue;
    }
    const bool more = added_.Split(utf8, encoder.regex_scratch(),
                                   [&](std::string_view piece, std::optional<int32_t> id) {
                                     if (id) return flush() && encoder.Added(*id);
                                     plain += piece;
                                     return true;
                                   });
    if (!more) return ids;
  }
  flush();
  return ids;
}

std::string_view Tokenizer::TokenBytes(int32_t id) const {
  return id >= 0 && id < size() ? std::string_view(token_bytes_[static_cast<size_t>(id)])
                                : std::string_view();
}

bool Tokenizer::IsSpecial(int32_t id) const {
  return id >= 0 && id < size() && special_[static_cast<size_t>(id)];
}

std::optional<int32_t> Tokenizer::TokenId(std::string_view content) const {
  if (const AddedToken* token = added_.FindContent(content)) return token->id;
  return bpe_.IdOfBytes(content);
}

}  // namespace weft::text
