#include "engine/run/select.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace weft {

void Selection::Widen(int64_t wanted) {
  if (wanted <= stride) return;
  std::vector<int32_t> wide(counts.size() * static_cast<size_t>(wanted));
  for (size_t token = 0; token < counts.size(); ++token) {
    // A dense token counts positions without having a list.
    const int64_t count = std::min<int64_t>(counts[token], stride);
    std::copy_n(List(static_cast<int32_t>(token)), count,
                wide.begin() + static_cast<int64_t>(token) * wanted);
  }
  positions.swap(wide);
  stride = wanted;
}

Selector::Selector(Communicator* comm, const Ops& ops, const Exec& exec, const Placement& placement,
                   const ModelConfig& config, Exchange exchange, double audit_share,
                   const Hooks& hooks, bool see_loads)
    : comm_(comm),
      exec_(exec),
      placement_(placement),
      exchange_(exchange),
      hooks_(hooks),
      picker_(comm->rank(), ops, exec, placement, config, hooks),
      tally_(see_loads),
      audit_(comm, audit_share),
      see_loads_(see_loads) {}

SelectionMode Selector::ModeOf(size_t s) const {
  return batch_->RowOf(batch_->selecting[s]).selection.mode;
}

// Lists that travel: whole items where keys are needed, else indices; none where lists stay.
int64_t Selector::ListWords(size_t s) const {
  const SelectionMode mode = ModeOf(s);
  if (mode == SelectionMode::kExact) return 2 * int64_t{batch_->capacity[s]};
  if (exchange_ == Exchange::kPartial) return 0;
  return (mode == SelectionMode::kCertified ? 2 : 1) * int64_t{batch_->capacity[s]};
}

void Selector::Begin(Batch* batch) {
  batch_ = batch;
  layers_ = 0;
  picker_.Begin(*batch);
  tally_.Begin(*batch);
  audit_.Begin(*batch);
  certified_.clear();
  const size_t n = batch->selecting.size();
  wire_at_.assign(n + 1, 0);
  covering_.assign(n, 0);
  int64_t stride = 0;
  const int64_t lists = exchange_ == Exchange::kPartial ? 1 : comm_->size();
  for (size_t s = 0; s < n; ++s) {
    const bool exact = ModeOf(s) == SelectionMode::kExact;
    if (ModeOf(s) == SelectionMode::kCertified) certified_.push_back(s);
    stride = std::max<int64_t>(stride, exact ? TopK(s) : batch->capacity[s] * lists);
  }
  LayOutWire();
  if (batch->layered) TellPlannedUnions();
  selection_.stride = stride;
  selection_.counts.assign(static_cast<size_t>(batch->tokens), 0);
  ReadAll();
}

// Each token's share of a rank's block, by the capacities of the layer in hand.
void Selector::LayOutWire() {
  for (size_t s = 0; s < batch_->selecting.size(); ++s) {
    const bool exact = ModeOf(s) == SelectionMode::kExact;
    wire_at_[s + 1] = wire_at_[s] + ListWords(s) + (exact ? 0 : 2);
  }
}

void Selector::TellPlannedUnions() {
  for (size_t s = 0; s < batch_->selecting.size(); ++s) {
    const int32_t token = batch_->selecting[s];
    const SelectionPlan& plan = batch_->RowOf(token).selection;
    if (plan.layer_m.empty()) continue;
    int64_t planned = 0;
    for (int rank = 0; rank < comm_->size(); ++rank) {
      const int64_t visible =
          placement_.VisibleCount(rank, batch_->position[static_cast<size_t>(token)]);
      planned += std::min<int64_t>(plan.m, visible);
    }
    tally_.SetPlannedUnion(s, planned);
  }
}

void Selector::ReadAll() {
  const bool partial = exchange_ == Exchange::kPartial;
  const auto selects = [this](int32_t token) {
    return batch_->RowOf(token).selection.Selects(batch_->position[static_cast<size_t>(token)]);
  };
  const auto is_dense = [this](int32_t token) {
    return batch_->RowOf(token).selection.mode == SelectionMode::kDense;
  };
  for (int32_t token = 0; token < batch_->tokens; ++token) {
    if (selects(token)) continue;
    const int32_t position = batch_->position[static_cast<size_t>(token)];
    const int64_t count = partial ? placement_.VisibleCount(comm_->rank(), position) : position + 1;
    selection_.counts[static_cast<size_t>(token)] = static_cast<int32_t>(count);
    if (!is_dense(token)) selection_.stride = std::max(selection_.stride, count);
  }
  selection_.positions.resize(static_cast<size_t>(batch_->tokens * selection_.stride));
  for (int32_t token = 0; token < batch_->tokens; ++token) {
    if (selects(token) || is_dense(token)) continue;
    int32_t* list = selection_.List(token);
    for (int32_t i = 0; i < selection_.counts[static_cast<size_t>(token)]; ++i) {
      list[i] = partial ? static_cast<int32_t>(placement_.Position(comm_->rank(), i)) : i;
    }
  }
}

void Selector::Select(int layer, const float* q, const float* w, const IndexCache& keys) {
  if (batch_->selecting.empty()) return;
  tally_.AddLayer(layer);
  const size_t number = layers_++;
  if (batch_->layered) {
    batch_->UseLayer(number, placement_);
    LayOutWire();
  }
  picker_.Pick(layer, q, w, keys);
  Pack();
  receive_.resize(send_.size() * static_cast<size_t>(comm_->size()));
  comm_->AllGather(send_.data(), receive_.data(), send_.size() * sizeof(uint32_t));
  Unite();
  if (!certified_.empty()) RunSecondRound();
  Override(layer);
  if (!audit_.sampled().empty()) RunAudit();
}

void Selector::Pack() {
  send_.resize(static_cast<size_t>(wire_at_.back()));
  ParallelFor(exec_, static_cast<int64_t>(batch_->selecting.size()), 64,
              [&](int64_t begin, int64_t end, int) {
                for (int64_t s = begin; s < end; ++s) PackToken(static_cast<size_t>(s));
              });
}

void Selector::PackToken(size_t s) {
  uint32_t* wire = send_.data() + wire_at_[s];
  const Item* list = picker_.List(s);
  const int64_t words = ListWords(s), capacity = batch_->capacity[s];
  if (words == 2 * capacity) {
    std::copy_n(list, capacity, reinterpret_cast<Item*>(wire));
  } else if (words == capacity) {
    for (int64_t j = 0; j < capacity; ++j) wire[j] = static_cast<uint32_t>(list[j].index);
  }
  if (ModeOf(s) == SelectionMode::kExact) return;
  std::memcpy(wire + words, &picker_.excluded(s), sizeof(Item));
}

// Hooks have the last word.
void Selector::Override(int layer) {
  for (size_t s = 0; s < batch_->selecting.size(); ++s) {
    const int32_t token = batch_->selecting[s];
    int32_t& count = selection_.counts[static_cast<size_t>(token)];
    const Where where{layer, batch_->RowOf(token).sequence,
                      batch_->position[static_cast<size_t>(token)]};
    std::vector<int32_t> override;
    if (hooks_.override_selection && hooks_.override_selection(where, &override)) {
      if (exchange_ == Exchange::kPartial) {
        std::erase_if(override, [this](int32_t position) {
          return placement_.Rank(position) != comm_->rank();
        });
      }
      if (static_cast<int64_t>(override.size()) > selection_.stride) {
        throw std::invalid_argument("override_selection: longer than any list of this step");
      }
      count = static_cast<int32_t>(override.size());
      std::copy(override.begin(), override.end(), selection_.List(token));
    }
    tally_.united(s) = count;
    if (hooks_.on_selection) hooks_.on_selection(where, selection_.List(token), count);
  }
}

void Selector::RunAudit() {
  audit_.Gather([this](size_t s, int32_t count) { return picker_.Best(s, count); });
  for (size_t i = 0; i < audit_.sampled().size(); ++i) {
    const size_t s = audit_.sampled()[i];
    const int32_t token = batch_->selecting[s];
    audit_.Check(i, picker_.excluded(s), selection_.List(token),
                 selection_.counts[static_cast<size_t>(token)], tally_.ahead(s));
  }
}

void Selector::Finish(std::vector<RowResult>* results) {
  tally_.Finish(comm_, hooks_, exchange_ == Exchange::kPartial, results);
  audit_.Finish(results);
}

}  // namespace weft
