// Attention over the selection on the device. One rank reads its cache where it lies. Several, by
// exchange `rows`, read the latents of decode steps in one another's caches where the GPUs of a
// host reach each other; else they gather what they need: decode rows token by token at the
// capacity of a list, rows of several tokens and dense rows by whole stretches of the visible
// cache. By exchange `partial` queries and outputs travel instead (engine/run/partial_exchange.h).
#pragma once

#include <cstdint>
#include <vector>

#include "engine/comm/communicator.h"
#include "engine/cuda/cuda_select.h"
#include "engine/cuda/device_batch.h"
#include "engine/run/exchange.h"
#include "kernels/ops/ops.h"
#include "kernels/ops/rows.h"
#include "kernels/ops/sparse_mla.h"

namespace weft {

class CudaExchange {
 public:
  // heads: of every rank. deterministic: how a list is cut never depends on the other tokens of
  // the step, so every token but the dense ones has its rows gathered by itself.
  CudaExchange(Exchange exchange, const Placement& placement, const std::vector<int32_t>& heads,
               Communicator* comm, CudaContext* context, const Exec& exec, int64_t workspace_bytes,
               bool deterministic, int64_t* generation);

  // params: rows, heads, latent, rope, scale, q and o as for SparseMla; o is written, divided.
  // Lists longer than the selection's stride are those of dense tokens. peers_have_written: the
  // ranks have met since they wrote this layer's latents.
  void Attend(const Batch& batch, const DeviceBatch& device, CudaSelector* selection,
              const LatentCache& cache, bool peers_have_written, SparseMlaParams params);
  // Whether it can do with picks that nobody has united (CudaSelector::picks), of this cache and
  // these params.
  bool TakesPicks(const LatentCache& cache, SparseMlaParams params) const;

 private:
  void PointAtCaches(const LatentCache& cache, SparseMlaParams* params) const;
  void AttendPicks();                           // all caches within reach, nothing but picks
  void AttendOwn(int64_t first, int64_t last);  // one rank
  // Tokens whose latents travel for each alone: of single-token rows, and if deterministic of all
  // but dense ones.
  void AttendShared(int64_t first, int64_t last);
  void AttendTiles(size_t row);  // a plan row of several tokens, or dense
  // cuda_partial.cc
  void AttendPartial();
  const float* GatherQueries(int64_t begin, int64_t tokens);
  void ReturnOutputs(int64_t begin, int64_t tokens);
  void Run(int64_t first, int64_t rows, const void* kv, const int32_t* counts, int64_t stride);
  int64_t LongestList(int64_t first, int64_t last) const;

  const Exchange kind_;
  const Placement placement_;
  const std::vector<int32_t> head_counts_;  // [ranks]
  Communicator* comm_;
  CudaContext* context_;
  const Ops& ops_;
  const Exec exec_;
  const int64_t workspace_bytes_;
  const bool deterministic_;

  const Batch* batch_ = nullptr;
  const DeviceBatch* device_ = nullptr;
  CudaSelector* selection_ = nullptr;
  LatentCache cache_;
  SparseMlaParams params_;

  DeviceBuffer<float> max_, sum_;
  DeviceBuffer<int32_t> lists_, counts_;
  DeviceBuffer<int64_t> slots_;
  DeviceBuffer<char> send_, receive_;
  // Of a tile of tokens and all heads.
  DeviceBuffer<float> queries_, all_max_, all_sum_, all_out_, send_out_, receive_out_;
};

}  // namespace weft
