// Errors of CUDA, cuBLASLt and of what an operation was asked to do, as one exception type that
// names file, line, the failing call and the reason.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

namespace weft {

class CudaError : public std::runtime_error {
 public:
  CudaError(const char* file, int line, const std::string& what)
      : std::runtime_error(std::string(file) + ":" + std::to_string(line) + ": " + what) {}
};

inline void CheckCuda(cudaError_t status, const char* call, const char* file, int line) {
  if (status == cudaSuccess) return;
  throw CudaError(file, line,
                  std::string(call) + ": " + cudaGetErrorName(status) + " (" +
                      cudaGetErrorString(status) + ")");
}

inline void CheckCublas(cublasStatus_t status, const char* call, const char* file, int line) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw CudaError(file, line, std::string(call) + ": " + cublasLtGetStatusName(status));
}

}  // namespace weft

#define WEFT_CUDA_CHECK(call) ::weft::CheckCuda((call), #call, __FILE__, __LINE__)
#define WEFT_CUBLAS_CHECK(call) ::weft::CheckCublas((call), #call, __FILE__, __LINE__)
// After <<<>>>: a launch that the device refused.
#define WEFT_CUDA_LAUNCHED(kernel) \
  ::weft::CheckCuda(cudaGetLastError(), "launch of " kernel, __FILE__, __LINE__)
// A rule of an operation's parameters, in words.
#define WEFT_CUDA_REQUIRE(condition, rule)                                 \
  do {                                                                     \
    if (!(condition)) throw ::weft::CudaError(__FILE__, __LINE__, (rule)); \
  } while (false)
