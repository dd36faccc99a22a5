#include "server/text/bpe.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

#include "server/text/byte_level.h"
#include "server/text/shown.h"

namespace weft::text {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kEmptyKey = ~uint64_t{0};  // no pair has it: ids are not negative
constexpr int32_t kNone = -1;
constexpr int32_t kMaxId = 1 << 24;  // refuses a file that would make us allocate gigabytes

[[noreturn]] void Fail(const std::string& message) {
  throw std::runtime_error("model: " + message);
}

// Refuses the options of HF's BPE that would change how words are cut. What concerns unknown
// characters is not read: every byte is in the vocabulary, so there are none.
void CheckOptions(const Json& model) {
  if (const Json type = model.value("type", Json()); type != "BPE") {
    Fail("type must be \"BPE\"; got " + Shown(type));
  }
  for (const char* name : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"}) {
    const Json value = model.value(name, Json());
    if (!value.is_null() && value != "" && value != 0.0) {
      Fail(std::string(name) + " is not supported; got " + Shown(value));
    }
  }
}

std::pair<std::string, std::string> ParseMerge(const Json& merge) {
  if (merge.is_array() && merge.size() == 2) return {merge[0], merge[1]};
  if (merge.is_string()) {
    const std::string& text = merge.get_ref<const std::string&>();
    const size_t space = text.find(' ');
    if (space != text.npos && text.find(' ', space + 1) == text.npos) {
      return {text.substr(0, space), text.substr(space + 1)};
    }
  }
  Fail("each of merges must be \"left right\" or [left, right]; got " + Shown(merge));
}

int32_t Lookup(const Json& vocabulary, const std::string& token) {
  const auto it = vocabulary.find(token);
  if (it == vocabulary.end()) Fail("merges use '" + ShownText(token) + "', which is not in vocab");
  return it->get<int32_t>();
}

}  // namespace

MergeTable::MergeTable(size_t expected)
    : slots_(std::bit_ceil(std::max<size_t>(2 * expected, 2)), Slot{kEmptyKey, {}}),
      shift_(64 - std::countr_zero(slots_.size())) {}

size_t MergeTable::Probe(uint64_t key) const {
  size_t i = key * 0x9E3779B97F4A7C15u >> shift_;  // Fibonacci hashing
  while (slots_[i].key != key && slots_[i].key != kEmptyKey) i = (i + 1) & (slots_.size() - 1);
  return i;
}

void MergeTable::Insert(int32_t left, int32_t right, Merge merge) {
  const uint64_t key = Key(left, right);
  slots_[Probe(key)] = {key, merge};
}

const MergeTable::Merge* MergeTable::Find(int32_t left, int32_t right) const {
  const Slot& slot = slots_[Probe(Key(left, right))];
  return slot.key == kEmptyKey ? nullptr : &slot.merge;
}

Bpe Bpe::FromJson(const Json& model) {
  CheckOptions(model);
  Bpe bpe;
  bpe.ignore_merges_ = model.value("ignore_merges", false);
  const Json& vocabulary = model.at("vocab");
  bpe.LoadVocabulary(vocabulary);
  bpe.LoadMerges(model.at("merges"), vocabulary);
  return bpe;
}

void Bpe::LoadVocabulary(const Json& vocabulary) {
  if (!vocabulary.is_object()) Fail("vocab must be an object");
  for (const auto& [spelling, value] : vocabulary.items()) {
    const int64_t id = value.get<int64_t>();
    if (id < 0 || id >= kMaxId) {
      Fail("vocab: id must be in [0, " + std::to_string(kMaxId) + "); got " + Shown(value));
    }
    if (token_bytes_.size() <= static_cast<size_t>(id)) {
      token_bytes_.resize(static_cast<size_t>(id) + 1);
    }
    std::string& bytes = token_bytes_[static_cast<size_t>(id)];
    if (!bytes.empty()) Fail("vocab: ids must be unique; got " + Shown(value) + " twice");
    if (std::optional<std::string> spelled = BytesFromSpelling(spelling)) {
      bytes = *std::move(spelled);
      by_bytes_.emplace(bytes, static_cast<int32_t>(id));
    } else {
      bytes = spelling;
      unspellable_.emplace(spelling, static_cast<int32_t>(id));
    }
  }
  for (int byte = 0; byte < 256; ++byte) {
    const std::optional<int32_t> id = IdOfBytes(std::string(1, static_cast<char>(byte)));
    if (!id) Fail("vocab must hold every byte; missing byte " + std::to_string(byte));
    byte_ids_[static_cast<size_t>(byte)] = *id;
  }
}

void Bpe::LoadMerges(const Json& merges, const Json& vocabulary) {
  if (!merges.is_array()) Fail("merges must be an array");
  merges_ = MergeTable(merges.size());
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const auto [left, right] = ParseMerge(merges[rank]);
    const int32_t merged = Lookup(vocabulary, left + right);
    merges_.Insert(Lookup(vocabulary, left), Lookup(vocabulary, right),
                   {static_cast<uint32_t>(rank), merged});
  }
}

void Bpe::PushPair(int32_t left, BpeScratch* scratch) const {
  const BpeScratch::Symbol& symbol = scratch->symbols[static_cast<size_t>(left)];
  if (symbol.next == kNone) return;
  const int32_t right_id = scratch->symbols[static_cast<size_t>(symbol.next)].id;
  if (const MergeTable::Merge* merge = merges_.Find(symbol.id, right_id)) {
    scratch->heap.push_back(uint64_t{merge->rank} << 32 | static_cast<uint32_t>(left));
    std::push_heap(scratch->heap.begin(), scratch->heap.end(), std::greater<>());
  }
}

void Bpe::Encode(std::string_view word, const std::stop_token& stop, BpeScratch* scratch,
                 std::vector<int32_t>* out) const {
  if (ignore_merges_) {
    if (const std::optional<int32_t> id = IdOfBytes(word)) return out->push_back(*id);
  }
  std::vector<BpeScratch::Symbol>& symbols = scratch->symbols;
  std::vector<uint64_t>& heap = scratch->heap;
  const int32_t n = static_cast<int32_t>(word.size());
  symbols.clear();
  heap.clear();
  for (int32_t i = 0; i < n; ++i) {
    const auto byte = static_cast<uint8_t>(word[static_cast<size_t>(i)]);
    symbols.push_back({byte_ids_[byte], i - 1, i + 1 < n ? i + 1 : kNone});
  }
  for (int32_t i = 0; i + 1 < n; ++i) {
    if (stop.stop_requested()) return;
    PushPair(i, scratch);
  }

  while (!heap.empty()) {
    if (stop.stop_requested()) return;
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const uint64_t entry = heap.back();
    heap.pop_back();
    BpeScratch::Symbol& left = symbols[static_cast<size_t>(entry & 0xFFFFFFFFu)];
    if (left.id == kNone || left.next == kNone) continue;
    BpeScratch::Symbol& right = symbols[static_cast<size_t>(left.next)];
    const MergeTable::Merge* merge = merges_.Find(left.id, right.id);
    // Entries are not removed when a neighbour changes; those left over no longer match.
    if (merge == nullptr || merge->rank != entry >> 32) continue;
    left.id = merge->merged;
    right.id = kNone;
    left.next = right.next;
    const int32_t position = static_cast<int32_t>(&left - symbols.data());
    if (left.next != kNone) symbols[static_cast<size_t>(left.next)].previous = position;
    PushPair(position, scratch);
    if (left.previous != kNone) PushPair(left.previous, scratch);
  }
  for (int32_t i = n > 0 ? 0 : kNone; i != kNone; i = symbols[static_cast<size_t>(i)].next) {
    out->push_back(symbols[static_cast<size_t>(i)].id);
  }
}

std::optional<int32_t> Bpe::IdOfBytes(std::string_view bytes) const {
  const auto it = by_bytes_.find(bytes);
  return it == by_bytes_.end() ? std::nullopt : std::optional(it->second);
}

std::optional<int32_t> Bpe::IdOfSpelling(std::string_view spelling) const {
  if (const std::optional<std::string> bytes = BytesFromSpelling(spelling)) {
    return IdOfBytes(*bytes);
  }
  const auto it = unspellable_.find(spelling);
  return it == unspellable_.end() ? std::nullopt : std::optional(it->second);
}

}  // namespace weft::text
