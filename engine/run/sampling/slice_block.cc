#include "engine/run/sampling/slice_block.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "kernels/ops/sample.h"

namespace weft {
namespace {

using Pool = SampleQuery::Pool;

int32_t TilesOf(int32_t slice) { return (slice + kVocabTile - 1) / kVocabTile; }

size_t TopsBytes(const SampleQuery& query, int32_t slice) {
  return static_cast<size_t>(std::min(query.tops, slice)) * sizeof(Candidate);
}

size_t PoolBytes(const SampleQuery& query, int32_t slice) {
  switch (query.pool) {
    case Pool::kForemost:
      return static_cast<size_t>(std::min(query.pool_size, slice)) * sizeof(Candidate);
    case Pool::kWhole:
      return static_cast<size_t>(slice) * sizeof(float);
    case Pool::kWholeAndRaw:
      return 2 * static_cast<size_t>(slice) * sizeof(float);
    case Pool::kNone:
      break;
  }
  return 0;
}

size_t QueryBytes(const SampleQuery& query, int32_t slice) {
  return sizeof(SliceSummary) + TopsBytes(query, slice) + PoolBytes(query, slice);
}

size_t TileBytes(int64_t count, int32_t slice) {
  return static_cast<size_t>(2 * count * TilesOf(slice)) * sizeof(float);
}

void PutList(const std::vector<Candidate>& list, char* to, size_t bytes) {
  if (bytes == 0) return;  // an empty vector's data() may be null, which memcpy must not get
  std::vector<Candidate> padded = list;
  padded.resize(bytes / sizeof(Candidate));
  std::memcpy(to, padded.data(), bytes);
}

void AppendList(const char* from, size_t bytes, std::vector<Candidate>* list) {
  for (size_t at = 0; at < bytes; at += sizeof(Candidate)) {
    Candidate candidate;
    std::memcpy(&candidate, from + at, sizeof(candidate));
    if (candidate.id >= 0) list->push_back(candidate);
  }
}

}  // namespace

SliceBlock::SliceBlock(const SampleQuery* queries, int64_t count, int32_t slice, char* data)
    : queries_(queries), count_(count), slice_(slice), tiles_(TilesOf(slice)), data_(data) {
  size_t at = TileBytes(count, slice);
  for (int64_t i = 0; i < count; ++i) {
    offsets_.push_back(at);
    at += QueryBytes(queries[i], slice);
  }
}

size_t SliceBlock::Bytes(const SampleQuery* queries, int64_t count, int32_t slice) {
  size_t bytes = TileBytes(count, slice);
  for (int64_t i = 0; i < count; ++i) bytes += QueryBytes(queries[i], slice);
  return bytes;
}

SliceSummary SliceBlock::Summary(int64_t query) const {
  SliceSummary summary;
  std::memcpy(&summary, At(query), sizeof(summary));
  return summary;
}

void SliceBlock::SetSummary(int64_t query, const SliceSummary& summary) {
  std::memcpy(At(query), &summary, sizeof(summary));
}

std::vector<Candidate> SliceBlock::Tops(int64_t query) const {
  std::vector<Candidate> tops;
  AppendList(At(query) + sizeof(SliceSummary), TopsBytes(queries_[query], slice_), &tops);
  return tops;
}

void SliceBlock::SetTops(int64_t query, const std::vector<Candidate>& tops) {
  PutList(tops, At(query) + sizeof(SliceSummary), TopsBytes(queries_[query], slice_));
}

void SliceBlock::AppendPool(int64_t query, int32_t slice_begin,
                            std::vector<Candidate>* pool) const {
  const SampleQuery& wanted = queries_[query];
  const char* from = At(query) + sizeof(SliceSummary) + TopsBytes(wanted, slice_);
  if (wanted.pool == Pool::kForemost) return AppendList(from, PoolBytes(wanted, slice_), pool);
  if (wanted.pool == Pool::kNone) return;
  const auto* logits = reinterpret_cast<const float*>(from);
  const float* raw = wanted.pool == Pool::kWholeAndRaw ? logits + slice_ : logits;
  for (int32_t i = 0; i < slice_; ++i) {
    if (logits[i] == -std::numeric_limits<float>::infinity()) continue;
    pool->push_back({slice_begin + i, logits[i], raw[i]});
  }
}

void SliceBlock::SetPool(int64_t query, const std::vector<Candidate>& pool) {
  const SampleQuery& wanted = queries_[query];
  PutList(pool, At(query) + sizeof(SliceSummary) + TopsBytes(wanted, slice_),
          PoolBytes(wanted, slice_));
}

void SliceBlock::SetPool(int64_t query, const float* logits, const float* raw) {
  const SampleQuery& wanted = queries_[query];
  char* to = At(query) + sizeof(SliceSummary) + TopsBytes(wanted, slice_);
  const size_t bytes = static_cast<size_t>(slice_) * sizeof(float);
  if (bytes == 0) return;
  std::memcpy(to, logits, bytes);
  if (wanted.pool == Pool::kWholeAndRaw) std::memcpy(to + bytes, raw, bytes);
}

}  // namespace weft
