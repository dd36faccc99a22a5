#include "engine/cuda/cuda_exchange.h"

#include <algorithm>
#include <numeric>

#include "kernels/ops/ops.h"

namespace weft {
namespace {

// Lists of as many tokens at a time as fit here; a dense token's is as long as its context.
constexpr int64_t kListBytes = int64_t{128} << 20;

}  // namespace

CudaExchange::CudaExchange(Exchange exchange, const Placement& placement,
                           const std::vector<int32_t>& heads, Communicator* comm,
                           CudaContext* context, const Exec& exec, int64_t workspace_bytes,
                           bool deterministic, int64_t* generation)
    : kind_(exchange),
      placement_(placement),
      head_counts_(heads),
      comm_(comm),
      context_(context),
      ops_(*CudaOps()),
      exec_(exec),
      workspace_bytes_(workspace_bytes),
      deterministic_(deterministic),
      max_(generation),
      sum_(generation),
      lists_(generation),
      counts_(generation),
      slots_(generation),
      send_(generation),
      receive_(generation),
      queries_(generation),
      all_max_(generation),
      all_sum_(generation),
      all_out_(generation),
      send_out_(generation),
      receive_out_(generation) {}

void CudaExchange::Attend(const Batch& batch, const DeviceBatch& device, CudaSelector* selection,
                          const LatentCache& cache, bool peers_have_written,
                          SparseMlaParams params) {
  batch_ = &batch;
  device_ = &device;
  selection_ = selection;
  cache_ = cache;
  params_ = params;
  params_.kv_dtype = cache.dtype;
  if (placement_.ranks > 1 && kind_ == Exchange::kPartial) return AttendPartial();
  params_.max = max_.Get(params.rows * params.heads + 1);
  params_.sum = sum_.Get(params.rows * params.heads + 1);
  const bool within_reach = placement_.ranks == 1 || (cache.peers != nullptr && peers_have_written);
  if (selection->picks() != nullptr || (within_reach && selection->entries() != nullptr)) {
    return AttendPicks();
  }
  InitSparseMlaCuda(params_, exec_);
  if (placement_.ranks == 1) {
    AttendOwn(0, params.rows);
  } else {
    const auto rows = static_cast<int64_t>(batch.plan->rows.size());
    const auto single = [&](int64_t r) {
      const PlanRow& row = batch.plan->rows[static_cast<size_t>(r)];
      return (row.count == 1 || deterministic_) && row.selection.mode != SelectionMode::kDense;
    };
    for (int64_t r = 0; r < rows;) {
      if (!single(r)) {
        AttendTiles(static_cast<size_t>(r++));
        continue;
      }
      const int64_t first = batch.row_begin[static_cast<size_t>(r)];
      while (r < rows && single(r)) ++r;
      // What a graph pads comes last.
      AttendShared(first, r == rows ? params.rows : batch.row_begin[static_cast<size_t>(r)]);
    }
  }
  FinishSparseMlaCuda(params_, nullptr, exec_);
}

int64_t CudaExchange::LongestList(int64_t first, int64_t last) const {
  int64_t longest = selection_->list_stride();
  for (int64_t token = first; token < std::min<int64_t>(last, batch_->tokens); ++token) {
    const auto t = static_cast<int32_t>(token);
    if (batch_->RowOf(t).selection.mode != SelectionMode::kDense) continue;
    longest = std::max<int64_t>(longest, batch_->position[static_cast<size_t>(t)] + 1);
  }
  return longest;
}

// Tokens [first, first + rows) over kv, by lists_ and `counts`.
void CudaExchange::Run(int64_t first, int64_t rows, const void* kv, const int32_t* counts,
                       int64_t stride) {
  if (params_.heads == 0) return;
  SparseMlaParams p = params_;
  const int64_t states = first * p.heads;
  p.rows = rows;
  p.q += states * (p.latent + p.rope);
  p.kv = kv;
  p.lists = lists_.data();
  p.list_stride = stride;
  p.counts = counts;
  p.max += states;
  p.sum += states;
  p.o += states * p.latent;
  ops_.sparse_mla(p, exec_);
}

void CudaExchange::PointAtCaches(const LatentCache& cache, SparseMlaParams* params) const {
  params->kv = cache.data;
  params->kv_dtype = cache.dtype;
  if (placement_.ranks > 1) std::copy_n(cache.peers, placement_.ranks, params->peers);
  params->peer_shift = PeerShift(placement_.ranks);
}

bool CudaExchange::TakesPicks(const LatentCache& cache, SparseMlaParams params) const {
  if (placement_.ranks > 1 && (kind_ == Exchange::kPartial || cache.peers == nullptr)) return false;
  PointAtCaches(cache, &params);
  return MlaTakesPicks(params, exec_);
}

// Nothing but picks, in this rank's cache or those within its reach: the selection names the rows.
void CudaExchange::AttendPicks() {
  SparseMlaParams p = params_;
  PointAtCaches(cache_, &p);
  if (selection_->picks() != nullptr) {
    p.picks = *selection_->picks();
    StartMlaOfPicksCuda(p, exec_);
    selection_->UnitePicks();
    EndMlaOfPicksCuda(p, exec_);
    return;
  }
  p.lists = selection_->entries();
  p.list_stride = selection_->list_stride();
  p.counts = selection_->counts();
  WholeSparseMlaCuda(p, exec_);
}

void CudaExchange::AttendOwn(int64_t first, int64_t last) {
  const int64_t stride = LongestList(first, last);
  const int64_t at_once = std::max<int64_t>(1, kListBytes / (stride * 4));
  for (int64_t begin = first; begin < last; begin += at_once) {
    CacheListsParams p;
    p.rows = std::min(at_once, last - begin);
    p.first = begin;
    p.placement = placement_;
    p.lists = selection_->lists();
    p.list_stride = selection_->list_stride();
    p.counts = selection_->counts();
    p.dense = device_->dense;
    p.pages = device_->pages;
    p.out = lists_.Get(p.rows * stride);
    p.out_stride = stride;
    p.out_counts = counts_.Get(p.rows);
    CacheListsCuda(p, exec_);
    Run(begin, p.rows, cache_.data, counts_.data(), stride);
  }
}

// Every token has its own rows: block of rank g at capacity, in the order of its list.
void CudaExchange::AttendShared(int64_t first, int64_t last) {
  const int64_t capacity = selection_->rank_capacity(), row_bytes = cache_.RowBytes();
  const int64_t token_bytes = capacity * row_bytes * placement_.ranks;
  const int64_t at_once = std::max<int64_t>(1, workspace_bytes_ / token_bytes);
  for (int64_t begin = first; begin < last; begin += at_once) {
    SharedListsParams p;
    p.rows = std::min(at_once, last - begin);
    p.first = begin;
    p.placement = placement_;
    p.rank = comm_->rank();
    p.lists = selection_->lists();
    p.list_stride = selection_->list_stride();
    p.counts = selection_->counts();
    p.pages = device_->pages;
    p.capacity = static_cast<int32_t>(capacity);
    p.send = slots_.Get(p.rows * capacity);
    p.out = lists_.Get(p.rows * p.list_stride);
    SharedListsCuda(p, exec_);
    const int64_t rows = p.rows * capacity;
    ops_.gather_latent({rows, p.send, cache_, send_.Get(rows * row_bytes)}, exec_);
    comm_->AllGather(send_.data(), receive_.Get(rows * row_bytes * placement_.ranks),
                     static_cast<size_t>(rows * row_bytes));
    Run(begin, p.rows, receive_.data(), selection_->counts() + begin, p.list_stride);
  }
}

// The visible cache of one sequence in stretches that fit the workspace; softmax states go on from
// one to the next.
void CudaExchange::AttendTiles(size_t row) {
  const int64_t first = batch_->row_begin[row], last = batch_->row_begin[row + 1];
  const int32_t position = batch_->position[static_cast<size_t>(last - 1)];
  const int64_t row_bytes = cache_.RowBytes();
  // Attention goes over a tile in steps of 32 entries: of dense tokens, at the same positions
  // whatever the tile.
  const int64_t block =
      deterministic_ ? std::lcm(int64_t{placement_.block}, int64_t{32}) : int64_t{placement_.block};
  const int64_t slots = (placement_.MaxVisibleCount(position) + block - 1) / block * block;
  const int64_t fit = workspace_bytes_ / (row_bytes * placement_.ranks) / block * block;
  const int64_t tile = std::clamp<int64_t>(fit, block, slots);
  const int64_t stride = std::min(LongestList(first, last), tile * placement_.ranks);
  const int64_t at_once = std::max<int64_t>(1, kListBytes / (stride * 4));
  for (int64_t begin = 0; begin < slots; begin += tile) {
    const int64_t count = std::min(tile, slots - begin);
    SlotRowsCuda({begin, count, placement_.VisibleCount(comm_->rank(), position),
                  device_->pages.tables + static_cast<int64_t>(row) * device_->pages.table_stride,
                  device_->pages.page_tokens, slots_.Get(count)},
                 exec_);
    ops_.gather_latent({count, slots_.data(), cache_, send_.Get(count * row_bytes)}, exec_);
    comm_->AllGather(send_.data(), receive_.Get(count * row_bytes * placement_.ranks),
                     static_cast<size_t>(count * row_bytes));
    for (int64_t token = first; token < last; token += at_once) {
      TileListsParams p;
      p.rows = std::min(at_once, last - token);
      p.first = token;
      p.placement = placement_;
      p.lists = selection_->lists();
      p.list_stride = selection_->list_stride();
      p.counts = selection_->counts();
      p.dense = device_->dense;
      p.slot_begin = begin;
      p.tile_slots = count;
      p.out = lists_.Get(p.rows * stride);
      p.out_stride = stride;
      p.out_counts = counts_.Get(p.rows);
      TileListsCuda(p, exec_);
      Run(token, p.rows, receive_.data(), counts_.data(), stride);
    }
  }
}

}  // namespace weft
