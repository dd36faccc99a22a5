// Selection of one layer on the device: scores, picks, the ranks' lists put together, and the
// second round of certified mode. The rules are those of engine/run/select.h.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "engine/comm/communicator.h"
#include "engine/cuda/cuda_list_inbox.h"
#include "engine/cuda/device_batch.h"
#include "engine/cuda/device_memory.h"
#include "engine/run/audit.h"
#include "engine/run/hooks.h"
#include "engine/run/tally.h"
#include "kernels/cuda/context.h"
#include "kernels/ops/index_select.h"
#include "kernels/ops/ops.h"
#include "kernels/ops/own_lists.h"
#include "kernels/ops/pick_lists.h"
#include "kernels/ops/unite.h"
#include "kernels/ops/unite_inbox.h"

namespace weft {

class CudaSelector {
 public:
  // Made by all ranks alike: they open inboxes for one another.
  CudaSelector(const ModelConfig& config, const Placement& placement, Communicator* comm,
               CudaContext* context, const Exec& exec, const Hooks& hooks, int64_t* generation);

  // Starts a step. `eager`: the host may wait for the device between layers, so that a failed
  // certificate is repaired at once; else the first layer of a failure is kept (FirstFailed).
  void Begin(const Batch& batch, const DeviceBatch& device, int64_t score_stride, bool eager);
  // The part of Begin that runs on the device.
  void Start();

  // q [T, Hi, di] and w [T, Hi]; keys of this rank, those of the step already written. Attention
  // that `takes_picks` may find entries alone and no lists, or the picks as they are: then picks()
  // is not null, and UnitePicks is to be called when attention has launched what reads them.
  void Select(int layer, const float* q, const float* w, const IndexCache& keys,
              bool takes_picks = false);
  const PickLists* picks() const { return picks_ ? &*picks_ : nullptr; }
  void UnitePicks();

  // Whether a later layer attends this one's lists.
  bool SharesLists(int layer) const;

  // What attention reads, on the device: [T, list_stride] ascending positions, and [T]. Those of
  // the last layer that selected; not written where entries or picks did.
  const int32_t* lists() const { return lists_.data(); }
  int64_t list_stride() const { return list_stride_; }
  const int32_t* counts() const { return counts_.data(); }
  // The same as rows of the caches (kernels/ops/unite_inbox.h), in the order of the lists where
  // there are such; null where a step has other lists too, hooks had a word, the ranks exchanged
  // their lists by a collective, or attention had the picks and no later layer shares them.
  const int32_t* entries() const { return entries_ready_ ? entries_.data() : nullptr; }
  // Of one token; waits for the stream.
  std::vector<int32_t> ListOf(int32_t token) const;
  // Most positions that one rank may hold of any list.
  int32_t rank_capacity() const { return rank_capacity_; }

  // Ends a step. Enqueues the exchange of the figures and their copy to the host; Finish reads them
  // when the stream is done. `tally` gets the layers of this step.
  void Collect();
  void Finish(Tally* tally, std::vector<RowResult>* results);
  // Layers selected for since Begin, in order.
  const std::vector<int>& layers() const { return layers_; }
  // Of the last finished step: tokens that attention read of picks, by layer selected for.
  int64_t UnitedOf(size_t layer) const;
  // The first layer in which a certificate failed; INT32_MAX: none. After the stream is done.
  int32_t FirstFailed() const;
  // Eager steps are also audited, by one that has begun the step.
  void AuditWith(Audit* audit) { audit_ = audit; }
  // A graph ran all layers before `layer`: their figures are there, the next goes on behind them.
  void Resume(int layer);

 private:
  static constexpr int32_t kNoneFailed = 0x7F7F7F7F;  // no layer; four bytes alike, for a memset

  void PickAll(int layer, const float* q, const float* w, const IndexCache& keys);
  size_t TileEnd(size_t begin) const;
  IndexScoresParams Scoring(size_t begin, size_t end, const float* q, const float* w,
                            const IndexCache& keys);
  void ShowScores(int layer, size_t begin, size_t end, int64_t stride);
  void Override(int layer);

  // cuda_select_figures.cc, with Collect to Resume above
  void Record();
  void ClearFailed();

  // cuda_unite.cc
  void Unite(int layer);
  void ListOwn(int layer, bool beside);  // one rank
  // Whether the lists of this step go through the inboxes.
  bool UsesInbox() const;
  void UniteInbox(int layer, bool beside);
  // Whether attention can do without anything but the picks of this layer.
  bool LeavesPicks() const;
  bool NobodyReadsLists() const;
  UniteParams UniteOf() const;
  UniteParams FirstRoundOf(int layer);
  void RankAgain();

  // cuda_second_round.cc
  void RunSecondRound(const float* q, const float* w, const IndexCache& keys);
  void Bounds(const std::vector<int32_t>& failed);
  void RankDeeper(const std::vector<int32_t>& failed, const float* q, const float* w,
                  const IndexCache& keys);
  void CopyQueries(const std::vector<int32_t>& rows, const float* q, const float* w);
  void ForScores(const std::vector<int32_t>& rows,
                 const std::function<void(int64_t, int64_t, int64_t)>& body);
  void RankScores(int64_t begin, int64_t count, int64_t stride, const IndexCache& keys,
                  const int32_t* m, int64_t deepest);
  void MergeLists(const std::vector<int32_t>& failed);

  // cuda_audit.cc
  void RunAudit(const float* q, const float* w, const IndexCache& keys);
  std::vector<std::vector<Item>> RankWhole(const float* q, const float* w, const IndexCache& keys);

  const void* Gather(const void* send, void* receive, size_t bytes);
  // Waits for the stream.
  template <typename T>
  std::vector<T> ToHost(const T* from, int64_t count) const {
    std::vector<T> host(static_cast<size_t>(count));
    WEFT_CUDA_CHECK(cudaMemcpyAsync(host.data(), from, host.size() * sizeof(T),
                                    cudaMemcpyDeviceToHost, context_->stream()));
    WEFT_CUDA_CHECK(cudaStreamSynchronize(context_->stream()));
    return host;
  }

  const ModelConfig& config_;
  const Placement placement_;
  Communicator* comm_;
  CudaContext* context_;
  const Ops& ops_;
  const Exec exec_;
  const Hooks& hooks_;
  Audit* audit_ = nullptr;

  const Batch* batch_ = nullptr;
  const DeviceBatch* device_ = nullptr;
  bool eager_ = true;
  int64_t score_stride_ = 0;  // of a graph; 0: as the tile needs
  int64_t list_stride_ = 0;
  int32_t rank_capacity_ = 0;
  std::vector<int> layers_;
  std::vector<std::vector<int32_t>> second_;  // [layers], picks with a second round

  DeviceBuffer<float> scores_;
  DeviceBuffer<uint32_t> bins_;  // of scores, [kCountedRows, kScoreBins]; zero between layers
  DeviceBuffer<Item> items_, excluded_;  // [S, capacity], [S]
  DeviceBuffer<int32_t> own_counts_;     // [S]
  DeviceBuffer<uint32_t> wire_, received_;
  DeviceBuffer<int32_t> lists_, counts_, entries_;
  bool entries_ready_ = false;
  bool takes_picks_ = false;
  std::optional<PickLists> picks_;
  CudaListInbox inbox_;
  DeviceBuffer<int32_t> merged_;
  DeviceBuffer<float> merged_scores_;
  DeviceBuffer<int64_t> merged_counts_;
  DeviceBuffer<Item> best_, best_excluded_;
  DeviceBuffer<int32_t> best_counts_;
  DeviceBuffer<int32_t> failed_, first_failed_;
  DeviceBuffer<int32_t> ahead_, united_, all_ahead_;  // [layers, S]
  PinnedBuffer host_figures_;
  // Of the failed rows of a second round.
  DeviceBuffer<int32_t> round_rows_, round_tokens_, deeper_, further_, all_further_;
  DeviceBuffer<int32_t> merged_lists_, new_counts_, wider_;
  DeviceBuffer<uint64_t> bound_;
  DeviceBuffer<float> round_q_, round_w_;
  DeviceBuffer<int64_t> round_visible_;
  DeviceBuffer<int32_t> round_tables_, round_m_;
};

}  // namespace weft
