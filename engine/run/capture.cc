#include "engine/run/capture.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/model/shards.h"

namespace weft {
namespace {

constexpr int kLogits = -1;
constexpr size_t kGatherFloats = size_t{4} << 20;  // at a time, of all ranks together

}  // namespace

Capture::Capture(const CaptureOptions& options, const ModelConfig& config,
                 const std::string& fingerprint, const Placement& placement, Communicator* comm)
    : options_(options),
      placement_(placement),
      vocab_(CountsOf(config.vocab, kVocabUnit, comm->size())),
      vocab_size_(config.vocab),
      comm_(comm),
      metadata_{{"format", "weft-capture-1"},
                {"model", fingerprint},
                {"index_topk", std::to_string(config.index_topk)},
                {"layers", std::to_string(config.layers)}} {
  if (comm->rank() == 0) file_ = std::make_unique<CaptureFile>(options.path);
}

void Capture::Attach(Hooks* hooks) {
  hooks->on_scores = [this](const Where& where, const float* scores, int64_t visible) {
    int32_t& length = lengths_[where.sequence];
    length = std::max(length, where.position + 1);
    if (!options_.scores || !options_.layers.Has(where.layer)) return;
    Keep(where, static_cast<size_t>(where.position) + 1, scores, static_cast<size_t>(visible));
  };
  if (options_.logits) {
    hooks->on_logits = [this](const Where& where, const float* logits, int32_t, int32_t count) {
      Keep({kLogits, where.sequence, where.position}, static_cast<size_t>(vocab_size_), logits,
           static_cast<size_t>(count));
    };
  }
  hooks->on_step_end = [this] { EndStep(); };
}

// A query that ran before (its sequence was put off, and began anew) is kept once.
bool Capture::Wants(const Where& where, size_t count) {
  if (!options_.queries.Has(where.position)) return false;
  if (taken_.count({where.sequence, where.layer, where.position}) > 0) return false;
  const auto bytes = static_cast<int64_t>(count * sizeof(float));
  if (bytes_ + bytes > options_.limit) {
    complete_ = false;
    return false;
  }
  bytes_ += bytes;
  taken_.insert({where.sequence, where.layer, where.position});
  return true;
}

void Capture::Keep(const Where& where, size_t count, const float* own, size_t own_count) {
  if (!Wants(where, count)) return;
  pieces_.push_back({where, count, own_.size()});
  own_.insert(own_.end(), own, own + own_count);
}

void Capture::EndStep() {
  for (size_t begin = 0; begin < pieces_.size();) {
    size_t end = begin, floats = 0;
    while (end < pieces_.size() && (end == begin || floats + pieces_[end].count <= kGatherFloats)) {
      floats += pieces_[end++].count;
    }
    Gather(pieces_.data() + begin, end - begin);
    begin = end;
  }
  pieces_.clear();
  own_.clear();
}

size_t Capture::CountAt(int rank, const Piece& piece) const {
  if (piece.where.layer == kLogits) return static_cast<size_t>(vocab_[static_cast<size_t>(rank)]);
  return static_cast<size_t>(placement_.VisibleCount(rank, piece.where.position));
}

void Capture::Gather(const Piece* pieces, size_t count) {
  std::vector<size_t> bytes(static_cast<size_t>(comm_->size()), 0), at{0};
  for (size_t rank = 0; rank < bytes.size(); ++rank) {
    for (size_t i = 0; i < count; ++i) {
      bytes[rank] += CountAt(static_cast<int>(rank), pieces[i]) * sizeof(float);
    }
    at.push_back(at.back() + bytes[rank]);
  }
  std::vector<float> all(at.back() / sizeof(float));
  comm_->AllGather(own_.data() + pieces[0].at, all.data(), bytes);
  if (!file_) return;
  std::vector<const float*> parts;
  for (size_t rank = 0; rank < bytes.size(); ++rank) {
    parts.push_back(all.data() + at[rank] / sizeof(float));
  }
  for (size_t i = 0; i < count; ++i) {
    Write(pieces[i], parts);
    for (size_t rank = 0; rank < parts.size(); ++rank) {
      parts[rank] += CountAt(static_cast<int>(rank), pieces[i]);
    }
  }
}

void Capture::Write(const Piece& piece, const std::vector<const float*>& parts) {
  const Where& where = piece.where;
  const std::string sequence = std::to_string(where.sequence) + ".";
  const std::string position = std::to_string(where.position);
  std::vector<float> whole;
  if (where.layer == kLogits) {
    for (size_t rank = 0; rank < parts.size(); ++rank) {
      whole.insert(whole.end(), parts[rank], parts[rank] + vocab_[rank]);
    }
    return file_->Add("logits." + sequence + position, whole);
  }
  for (int64_t p = 0; p <= where.position; ++p) {
    whole.push_back(parts[static_cast<size_t>(placement_.Rank(p))][placement_.Slot(p)]);
  }
  file_->Add("scores." + sequence + std::to_string(where.layer) + "." + position, whole);
}

void Capture::Finish() {
  nlohmann::json lengths = nlohmann::json::object();
  for (const auto& [sequence, length] : lengths_) lengths[std::to_string(sequence)] = length;
  metadata_["lengths"] = lengths.dump();
  metadata_["complete"] = complete_ ? "true" : "false";
  file_->Finish(metadata_);
}

}  // namespace weft
