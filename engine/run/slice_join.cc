#include "engine/run/slice_join.h"

#include <cstring>
#include <numeric>

namespace weft {
namespace {

int64_t Sum(const std::vector<int32_t>& counts, int ranks) {
  return std::accumulate(counts.begin(), counts.begin() + ranks, int64_t{0});
}

}  // namespace

float* SliceJoin::AddInput(int64_t rows, const std::vector<int32_t>& counts, float* out) {
  return sums_ ? out : AddColumns(rows, counts, out);
}

float* SliceJoin::AddOutput(int64_t rows, const std::vector<int32_t>& counts, float* out) {
  if (!sums_) return AddColumns(rows, counts, out);
  summand_ = out;
  summand_size_ = static_cast<size_t>(rows * Sum(counts, comm_->size()));
  return out;
}

float* SliceJoin::AddColumns(int64_t rows, const std::vector<int32_t>& counts, float* out) {
  if (comm_->size() == 1) return out;
  Part part{rows, &counts, out, {}};
  if (!spare_.empty()) {
    part.local = std::move(spare_.back());
    spare_.pop_back();
  }
  part.local.resize(static_cast<size_t>(rows * counts[static_cast<size_t>(comm_->rank())]));
  parts_.push_back(std::move(part));
  return parts_.back().local.data();
}

void SliceJoin::Run() {
  if (comm_->size() == 1) return;
  if (!sums_) {
    Gather();
  } else if (summand_ != nullptr) {
    comm_->AllReduce(summand_, summand_size_, Reduce::kSumF32);
    summand_ = nullptr;
  }
}

void SliceJoin::Gather() {
  std::vector<size_t> bytes(static_cast<size_t>(comm_->size()), 0);
  size_t total = 0;
  for (size_t rank = 0; rank < bytes.size(); ++rank) {
    for (const Part& part : parts_) {
      bytes[rank] += static_cast<size_t>(part.rows * (*part.counts)[rank]) * sizeof(float);
    }
    total += bytes[rank];
  }
  const float* send = parts_.front().local.data();
  if (parts_.size() > 1) {
    send_.clear();
    for (const Part& part : parts_) send_.insert(send_.end(), part.local.begin(), part.local.end());
    send = send_.data();
  }
  // One row of one matrix arrives in its final order.
  const bool in_order = parts_.size() == 1 && parts_.front().rows == 1;
  if (!in_order) receive_.resize(total / sizeof(float));
  comm_->AllGather(send, in_order ? parts_.front().out : receive_.data(), bytes);
  if (!in_order) {
    const float* block = receive_.data();
    for (size_t rank = 0; rank < bytes.size(); ++rank) {
      Unpack(static_cast<int>(rank), block);
      block += bytes[rank] / sizeof(float);
    }
  }
  for (Part& part : parts_) spare_.push_back(std::move(part.local));
  parts_.clear();
}

void SliceJoin::Unpack(int rank, const float* block) {
  for (const Part& part : parts_) {
    const int64_t count = (*part.counts)[static_cast<size_t>(rank)];
    const int64_t width = Sum(*part.counts, comm_->size());
    const int64_t before = Sum(*part.counts, rank);
    ParallelFor(exec_, part.rows, 64, [&](int64_t begin, int64_t end, int) {
      for (int64_t row = begin; row < end; ++row) {
        std::memcpy(part.out + row * width + before, block + row * count,
                    static_cast<size_t>(count) * sizeof(float));
      }
    });
    block += part.rows * count;
  }
}

}  // namespace weft
