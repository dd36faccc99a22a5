// Byte-pair encoding of one word, by the merge list of a Hugging Face "BPE" model.
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace weft::text {

// Which two neighbouring tokens merge, how early, and into what: a flat hash table, since this
// look-up is most of the work of encoding.
class MergeTable {
 public:
  struct Merge {
    uint32_t rank;  // lower merges first
    int32_t merged;
  };

  explicit MergeTable(size_t expected = 0);

  void Insert(int32_t left, int32_t right, Merge merge);  // a second one for a pair replaces
  const Merge* Find(int32_t left, int32_t right) const;

 private:
  struct Slot {
    uint64_t key;
    Merge merge;
  };
  static uint64_t Key(int32_t left, int32_t right) {
    return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  }
  size_t Probe(uint64_t key) const;

  std::vector<Slot> slots_;  // size is a power of two, at most half full
  int shift_;
};

// Buffers of Bpe::Encode, kept between words.
struct BpeScratch {
  struct Symbol {
    int32_t id;  // -1: merged into the symbol before it
    int32_t previous;
    int32_t next;
  };
  std::vector<Symbol> symbols;
  std::vector<uint64_t> heap;  // rank << 32 | position, smallest first
};

class Bpe {
 public:
  // `model` as in tokenizer.json. Throws std::runtime_error naming feature, rule and value.
  static Bpe FromJson(const nlohmann::json& model);

  // Appends the tokens of `word` (bytes). O(n log n) in its length, which may be that of the text:
  // when `stop` is requested, nothing is appended.
  void Encode(std::string_view word, const std::stop_token& stop, BpeScratch* scratch,
              std::vector<int32_t>* out) const;

  // Bytes of each id of the vocabulary; empty for ids not in it.
  const std::vector<std::string>& token_bytes() const { return token_bytes_; }

  // The id whose vocabulary entry is `spelling` (byte-level alphabet) or stands for `bytes`.
  std::optional<int32_t> IdOfSpelling(std::string_view spelling) const;
  std::optional<int32_t> IdOfBytes(std::string_view bytes) const;

 private:
  struct StringHash {
    using is_transparent = void;
    size_t operator()(std::string_view s) const { return std::hash<std::string_view>()(s); }
  };
  template <typename V>
  using StringMap = std::unordered_map<std::string, V, StringHash, std::equal_to<>>;

  void LoadVocabulary(const nlohmann::json& vocabulary);
  void LoadMerges(const nlohmann::json& merges, const nlohmann::json& vocabulary);
  void PushPair(int32_t left, BpeScratch* scratch) const;

  MergeTable merges_;
  std::array<int32_t, 256> byte_ids_{};
  std::vector<std::string> token_bytes_;
  StringMap<int32_t> by_bytes_;
  StringMap<int32_t> unspellable_;  // entries outside the byte alphabet; no merge reaches them
  bool ignore_merges_ = false;      // a word that is a token is that token
};

}  // namespace weft::text
