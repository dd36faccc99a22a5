#include "kernels/cuda/context.h"

#include "kernels/cuda/check.h"

namespace weft {

CudaContext::CudaContext(int device, size_t scratch_bytes) : scratch_bytes_(scratch_bytes) {
  WEFT_CUDA_CHECK(cudaSetDevice(device));
  int major = 0;
  WEFT_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  WEFT_CUDA_REQUIRE(major == 9, "the CUDA kernels need compute capability 9, this device has " +
                                    std::to_string(major));
  WEFT_CUDA_CHECK(cudaDeviceGetAttribute(&sms_, cudaDevAttrMultiProcessorCount, device));
  WEFT_CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  WEFT_CUDA_CHECK(cudaMalloc(&scratch_, scratch_bytes_));
  WEFT_CUDA_CHECK(cudaMalloc(&sync_, kSyncBytes));
  WEFT_CUDA_CHECK(cudaMemset(sync_, 0, kSyncBytes));
  WEFT_CUDA_CHECK(cudaMalloc(&cublas_scratch_, kCublasBytes));
  WEFT_CUBLAS_CHECK(cublasLtCreate(&cublas_));
}

CudaContext::~CudaContext() {
  for (auto& [key, plan] : plans_) {
    cublasLtMatmulDescDestroy(plan.op);
    for (cublasLtMatrixLayout_t layout : {plan.a, plan.b, plan.d}) {
      cublasLtMatrixLayoutDestroy(layout);
    }
  }
  if (cublas_ != nullptr) cublasLtDestroy(cublas_);
  for (void* p : {scratch_, sync_, cublas_scratch_}) cudaFree(p);
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

CudaContext& CudaContext::From(const Exec& exec) {
  WEFT_CUDA_REQUIRE(exec.device != nullptr, "a CUDA operation needs an Exec of a CudaContext");
  return *static_cast<CudaContext*>(exec.device);
}

Exec CudaContext::exec(bool exact) {
  Exec exec;
  exec.stream = stream_;
  exec.device = this;
  exec.exact = exact;
  return exec;
}

void* CudaContext::Scratch(size_t bytes, const char* op) const {
  WEFT_CUDA_REQUIRE(bytes <= scratch_bytes_, std::string(op) + " needs " + std::to_string(bytes) +
                                                 " bytes of scratch memory, the context has " +
                                                 std::to_string(scratch_bytes_));
  return scratch_;
}

// cuBLASLt counts columns first: the row-major y[M, N] is its N x M matrix, w its K x N,
// transposed.
const CudaContext::Plan& CudaContext::PlanFor(const Key& key) {
  if (const auto found = plans_.find(key); found != plans_.end()) return found->second;
  const auto [m, n, k, ldx, ldw, ldy, alignment] = key;
  Plan plan;
  WEFT_CUBLAS_CHECK(cublasLtMatmulDescCreate(&plan.op, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  const cublasOperation_t transposed = CUBLAS_OP_T;
  WEFT_CUBLAS_CHECK(cublasLtMatmulDescSetAttribute(plan.op, CUBLASLT_MATMUL_DESC_TRANSA,
                                                   &transposed, sizeof(transposed)));
  WEFT_CUBLAS_CHECK(cublasLtMatrixLayoutCreate(&plan.a, CUDA_R_16BF, static_cast<uint64_t>(k),
                                               static_cast<uint64_t>(n), ldw));
  WEFT_CUBLAS_CHECK(cublasLtMatrixLayoutCreate(&plan.b, CUDA_R_16BF, static_cast<uint64_t>(k),
                                               static_cast<uint64_t>(m), ldx));
  WEFT_CUBLAS_CHECK(cublasLtMatrixLayoutCreate(&plan.d, CUDA_R_32F, static_cast<uint64_t>(n),
                                               static_cast<uint64_t>(m), ldy));
  cublasLtMatmulPreference_t preference;
  WEFT_CUBLAS_CHECK(cublasLtMatmulPreferenceCreate(&preference));
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    WEFT_CUBLAS_CHECK(
        cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value)));
  };
  const auto bytes = static_cast<uint32_t>(alignment);
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{kCublasBytes});
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, bytes);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, bytes);
  cublasLtMatmulHeuristicResult_t best;
  int found = 0;
  WEFT_CUBLAS_CHECK(cublasLtMatmulAlgoGetHeuristic(cublas_, plan.op, plan.a, plan.b, plan.d, plan.d,
                                                   preference, 1, &best, &found));
  cublasLtMatmulPreferenceDestroy(preference);
  WEFT_CUDA_REQUIRE(found == 1, "cuBLASLt has no algorithm for M=" + std::to_string(m) +
                                    " N=" + std::to_string(n) + " K=" + std::to_string(k));
  plan.algo = best.algo;
  return plans_.emplace(key, plan).first->second;
}

void CudaContext::Gemm(int64_t m, int64_t n, int64_t k, const void* x, int64_t ldx, const void* w,
                       int64_t ldw, float* y, int64_t ldy, bool accumulate) {
  const auto address = reinterpret_cast<uintptr_t>(y);
  const int alignment = address % 256 == 0 ? 256 : address % 16 == 0 ? 16 : 4;
  const Plan& plan = PlanFor({m, n, k, ldx, ldw, ldy, alignment});
  const float alpha = 1, beta = accumulate ? 1.0f : 0.0f;
  WEFT_CUBLAS_CHECK(cublasLtMatmul(cublas_, plan.op, &alpha, w, plan.a, x, plan.b, &beta, y, plan.d,
                                   y, plan.d, &plan.algo, cublas_scratch_, kCublasBytes, stream_));
}

}  // namespace weft
