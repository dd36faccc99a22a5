// What CUDA operations need beside their parameters: a stream, scratch memory, device facts and
// cuBLASLt. One per rank and stream; operations on one context run in stream order, so that they
// share the scratch memory. Nothing is allocated after construction except cached cuBLASLt plans.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <tuple>

#include "kernels/exec.h"

namespace weft {

class CudaContext {
 public:
  static constexpr size_t kDefaultScratch = size_t{256} << 20;
  static constexpr size_t kCublasBytes = size_t{32} << 20;
  static constexpr size_t kSyncBytes = size_t{12} << 20;

  // Creates its own stream on `device`. Throws CudaError.
  explicit CudaContext(int device, size_t scratch_bytes = kDefaultScratch);
  ~CudaContext();
  CudaContext(const CudaContext&) = delete;
  CudaContext& operator=(const CudaContext&) = delete;

  static CudaContext& From(const Exec& exec);

  Exec exec(bool exact = false);
  cudaStream_t stream() const { return stream_; }
  int sms() const { return sms_; }

  // The scratch area, of at least `bytes`; contents last until the next operation. Throws when the
  // context was made with less.
  void* Scratch(size_t bytes, const char* op) const;
  size_t scratch_bytes() const { return scratch_bytes_; }
  // What select_top keeps between launches; zero at first.
  void* sync() const { return sync_; }

  // y[M, N] (fp32, row stride ldy) = or += x[M, K] (bf16, row stride ldx) w[N, K]^T (bf16, ldw),
  // with fp32 accumulation, by cuBLASLt.
  void Gemm(int64_t m, int64_t n, int64_t k, const void* x, int64_t ldx, const void* w, int64_t ldw,
            float* y, int64_t ldy, bool accumulate);

 private:
  struct Plan {
    cublasLtMatmulDesc_t op;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulAlgo_t algo;
  };
  using Key = std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int>;
  const Plan& PlanFor(const Key& key);

  cudaStream_t stream_ = nullptr;
  int sms_ = 0;
  size_t scratch_bytes_ = 0;
  void* scratch_ = nullptr;
  void* sync_ = nullptr;
  void* cublas_scratch_ = nullptr;
  cublasLtHandle_t cublas_ = nullptr;
  std::map<Key, Plan> plans_;
};

}  // namespace weft
