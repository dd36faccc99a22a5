#include "engine/cuda/cuda_slice_join.h"

#include <numeric>

#include "kernels/ops/rows.h"

namespace weft {

float* CudaSliceJoin::AddInput(int64_t rows, const std::vector<int32_t>& counts, float* out) {
  return sums_ ? out : AddColumns(rows, counts, out);
}

float* CudaSliceJoin::AddOutput(int64_t rows, const std::vector<int32_t>& counts, float* out) {
  if (!sums_) return AddColumns(rows, counts, out);
  summand_ = out;
  summand_size_ =
      static_cast<size_t>(rows * std::accumulate(counts.begin(), counts.end(), int64_t{0}));
  return out;
}

float* CudaSliceJoin::AddColumns(int64_t rows, const std::vector<int32_t>& counts, float* out) {
  if (ranks_ == 1) return out;
  const int64_t own = rows * counts[static_cast<size_t>(comm_->rank())];
  parts_.push_back({rows, &counts, out});
  float* slice = send_.Get(used_ + own) + used_;  // grows only before the first: see Reserve
  used_ += own;
  return slice;
}

void CudaSliceJoin::Run() {
  if (ranks_ == 1) return;
  if (!sums_) {
    Gather();
  } else if (summand_ != nullptr) {
    comm_->AllReduce(summand_, summand_size_, Reduce::kSumF32);
    summand_ = nullptr;
  }
}

void CudaSliceJoin::Gather() {
  std::vector<size_t> bytes(static_cast<size_t>(ranks_), 0);
  size_t total = 0;
  for (size_t rank = 0; rank < bytes.size(); ++rank) {
    for (const Part& part : parts_) {
      bytes[rank] += static_cast<size_t>(part.rows * (*part.counts)[rank]) * sizeof(float);
    }
    total += bytes[rank];
  }
  // One row of one matrix arrives in its final order.
  const bool in_order = parts_.size() == 1 && parts_.front().rows == 1;
  float* receive =
      in_order ? parts_.front().out : receive_.Get(static_cast<int64_t>(total / sizeof(float)));
  comm_->AllGather(send_.data(), receive, bytes);
  for (size_t rank = 0; rank < bytes.size() && !in_order; ++rank) {
    for (const Part& part : parts_) {
      const auto begin = part.counts->begin();
      const int32_t count = (*part.counts)[rank];
      const int64_t width = std::accumulate(begin, part.counts->end(), int64_t{0});
      const auto before = std::accumulate(begin, begin + static_cast<int64_t>(rank), int64_t{0});
      PickRowsCuda({part.rows, count, receive, count, nullptr, part.out + before, width}, exec_);
      receive += part.rows * count;
    }
  }
  parts_.clear();
  used_ = 0;
}

}  // namespace weft
