#include "engine/run/partial_exchange.h"

#include <algorithm>
#include <numeric>

namespace weft {
namespace {

template <typename T>
void Resize(std::vector<T>* buffer, int64_t count) {
  buffer->resize(std::max(buffer->size(), static_cast<size_t>(count)));
}

}  // namespace

PartialExchange::PartialExchange(Communicator* comm, const Ops& ops, const Exec& exec,
                                 const Placement& placement, const std::vector<int32_t>& heads,
                                 int64_t workspace_bytes)
    : comm_(comm),
      ops_(ops),
      exec_(exec),
      placement_(placement),
      heads_(heads),
      all_heads_(std::accumulate(heads.begin(), heads.end(), 0)),
      workspace_bytes_(workspace_bytes) {}

void PartialExchange::Attend(const Batch& batch, const Selection& selection,
                             const LatentCache& cache, const SparseMlaParams& params) {
  batch_ = &batch;
  selection_ = &selection;
  cache_ = cache;
  // Queries and outputs, each once as used and once as it travels. The same on every rank.
  const int64_t token_bytes = int64_t{all_heads_} * 4 * (params.latent + params.rope) * 4;
  const int64_t tile = std::max<int64_t>(1, workspace_bytes_ / token_bytes);
  for (int64_t begin = 0; begin < batch.tokens; begin += tile) {
    const int64_t end = std::min<int64_t>(begin + tile, batch.tokens);
    MakeLists(begin, end);
    GatherQueries(params, begin, end);
    AttendTile(params, end - begin);
    ReturnOutputs(params, begin, end);
  }
}

void PartialExchange::MakeLists(int64_t begin, int64_t end) {
  counts_.assign(selection_->counts.begin() + begin, selection_->counts.begin() + end);
  list_stride_ = *std::max_element(counts_.begin(), counts_.end());
  Resize(&lists_, (end - begin) * list_stride_);
  ParallelFor(exec_, end - begin, 16, [&](int64_t from, int64_t to, int) {
    for (int64_t i = from; i < to; ++i) {
      const auto token = static_cast<int32_t>(begin + i);
      const PlanRow& row = batch_->RowOf(token);
      const bool dense = row.selection.mode == SelectionMode::kDense;
      const int32_t* list = dense ? nullptr : selection_->List(token);
      for (int32_t j = 0; j < counts_[static_cast<size_t>(i)]; ++j) {
        const int64_t slot = dense ? j : placement_.Slot(list[j]);
        lists_[static_cast<size_t>(i * list_stride_ + j)] =
            static_cast<int32_t>(CacheSlot(*batch_->plan, row, slot, cache_.page_tokens));
      }
    }
  });
}

void PartialExchange::GatherQueries(const SparseMlaParams& params, int64_t begin, int64_t end) {
  const int64_t width = params.latent + params.rope, tokens = end - begin;
  const float* own = params.q + begin * params.heads * width;
  Resize(&queries_, tokens * all_heads_ * width);
  std::vector<size_t> bytes;
  for (int32_t heads : heads_) {
    bytes.push_back(static_cast<size_t>(tokens * heads * width) * sizeof(float));
  }
  // Ranks' blocks of one token lie side by side already.
  float* target = queries_.data();
  if (tokens > 1) {
    Resize(&receive_, tokens * all_heads_ * width);
    target = receive_.data();
  }
  comm_->AllGather(own, target, bytes);
  if (tokens == 1) return;
  int64_t before = 0;
  for (int32_t heads : heads_) {
    const float* block = target + tokens * before * width;
    ParallelFor(exec_, tokens, 16, [&](int64_t from, int64_t to, int) {
      for (int64_t t = from; t < to; ++t) {
        std::copy_n(block + t * heads * width, heads * width,
                    queries_.data() + (t * all_heads_ + before) * width);
      }
    });
    before += heads;
  }
}

void PartialExchange::AttendTile(const SparseMlaParams& params, int64_t tokens) {
  SparseMlaParams attention = params;
  attention.rows = tokens;
  attention.heads = all_heads_;
  attention.q = queries_.data();
  attention.kv = cache_.data;
  attention.kv_dtype = cache_.dtype;
  attention.lists = lists_.data();
  attention.list_stride = list_stride_;
  attention.counts = counts_.data();
  Resize(&max_, tokens * all_heads_);
  Resize(&sum_, tokens * all_heads_);
  Resize(&out_, tokens * all_heads_ * params.latent);
  attention.max = max_.data();
  attention.sum = sum_.data();
  attention.o = out_.data();
  InitSparseMla(attention);
  ops_.sparse_mla(attention, exec_);
}

void PartialExchange::ReturnOutputs(const SparseMlaParams& params, int64_t begin, int64_t end) {
  const int64_t c = params.latent, tokens = end - begin, entry = c + 2;
  Resize(&send_, tokens * all_heads_ * entry);
  const int64_t received = comm_->size() * tokens * params.heads * entry;
  Resize(&receive_, received);
  std::vector<size_t> send_bytes, receive_bytes;
  int64_t before = 0;
  for (int32_t heads : heads_) {
    float* block = send_.data() + tokens * before * entry;
    ParallelFor(exec_, tokens, 16, [&](int64_t from, int64_t to, int) {
      for (int64_t i = from * heads; i < to * heads; ++i) {
        const int64_t at = i / heads * all_heads_ + before + i % heads;
        float* out = block + i * entry;
        std::copy_n(out_.data() + at * c, c, out);
        out[c] = max_[static_cast<size_t>(at)];
        out[c + 1] = sum_[static_cast<size_t>(at)];
      }
    });
    before += heads;
    send_bytes.push_back(static_cast<size_t>(tokens * heads * entry) * sizeof(float));
    receive_bytes.push_back(static_cast<size_t>(tokens * params.heads * entry) * sizeof(float));
  }
  comm_->AllToAll(send_.data(), send_bytes, receive_.data(), receive_bytes);
  ops_.merge_mla({tokens * params.heads, comm_->size(), params.latent, receive_.data(),
                  params.o + begin * params.heads * c},
                 exec_);
}

}  // namespace weft
