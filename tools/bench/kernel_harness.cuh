// Arrays on the device, and times of kernels in a CUDA graph over rotated (L2-cold) buffers.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/cuda/check.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/device.cuh"
#include "kernels/ops/ops.h"

namespace weft::bench {

constexpr double kBytesPerSecond = 4.3e12, kFlopsPerSecond = 790e12;

// --- Device arrays -----------------------------------------------------------------------------

// About normal: the sum of four uniform numbers, scaled and shifted.
template <typename T>
__global__ void FillKernel(T* out, int64_t n, uint64_t seed, float scale, float shift) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < n;
       i += int64_t{gridDim.x} * blockDim.x) {
    const uint64_t bits = SplitMix64(seed + static_cast<uint64_t>(i));
    float sum = 0;
    for (int j = 0; j < 4; ++j) sum += static_cast<float>(bits >> 16 * j & 0xFFFF) / 65536.0f;
    cuda::Narrow((sum - 2.0f) * 1.732f * scale + shift, out + i);
  }
}

template <typename T>
class Array {
 public:
  explicit Array(int64_t n) : n_(n) {
    WEFT_CUDA_CHECK(cudaMalloc(&data_, static_cast<size_t>(n) * sizeof(T)));
  }
  explicit Array(const std::vector<T>& host) : Array(static_cast<int64_t>(host.size())) {
    WEFT_CUDA_CHECK(cudaMemcpy(data_, host.data(), host.size() * sizeof(T), cudaMemcpyDefault));
  }
  ~Array() { cudaFree(data_); }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  T* data() const { return static_cast<T*>(data_); }
  void Fill(uint64_t seed, float scale = 1, float shift = 0) const {
    FillKernel<<<2048, 256>>>(data(), n_, seed, scale, shift);
    WEFT_CUDA_CHECK(cudaDeviceSynchronize());
  }
  std::vector<T> Host() const {
    std::vector<T> host(static_cast<size_t>(n_));
    WEFT_CUDA_CHECK(cudaDeviceSynchronize());
    WEFT_CUDA_CHECK(cudaMemcpy(host.data(), data_, host.size() * sizeof(T), cudaMemcpyDefault));
    return host;
  }

 private:
  void* data_ = nullptr;
  int64_t n_;
};

inline double RelativeError(const std::vector<float>& got, const std::vector<float>& want) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    error += (double{got[i]} - want[i]) * (double{got[i]} - want[i]);
    norm += double{want[i]} * want[i];
  }
  return std::sqrt(error / norm);
}

// --- Timing and report -------------------------------------------------------------------------

class Bench {
 public:
  explicit Bench(const char* json) : context_(0, size_t{512} << 20) {
    if (json != nullptr) {
      json_ = std::fopen(json, "w");
      if (json_ == nullptr) throw std::runtime_error("--json: cannot write " + std::string(json));
      std::fprintf(json_, "[");
    }
    std::printf("%-52s %9s %9s %9s %7s\n", "kernel", "us", "GB/s", "TFLOP/s", "limit");
  }
  ~Bench() {
    if (json_ != nullptr) std::fprintf(json_, "\n]\n"), std::fclose(json_);
  }
  CudaContext& context() { return context_; }

  // One call of op(i), i counting buffers, must do `bytes` and `flops` at least. `before` goes
  // ahead of all calls and is not timed.
  void Run(
      const std::string& name, bool correct, double bytes, double flops, int calls,
      const std::function<void(int)>& op, const std::function<void()>& before = [] {}) {
    if (!correct) {
      std::printf("%-52s WRONG RESULT\n", name.c_str());
      failed_ = true;
      return;
    }
    const double us = Time(calls, op, before);
    const double limit = std::max(bytes / kBytesPerSecond, flops / kFlopsPerSecond) * 1e6;
    std::printf("%-52s %9.2f %9.0f %9.1f %6.1f%%\n", name.c_str(), us, bytes / us * 1e-3,
                flops / us * 1e-6, 100 * limit / us);
    std::fflush(stdout);
    if (json_ == nullptr) return;
    std::fprintf(json_,
                 "%s\n {\"kernel\": \"%s\", \"us\": %.3f, \"gb_per_s\": %.1f, \"tflop_per_s\": "
                 "%.2f, \"limit_us\": %.3f}",
                 comma_, name.c_str(), us, bytes / us * 1e-3, flops / us * 1e-6, limit);
    comma_ = ",";
  }
  bool failed() const { return failed_; }

 private:
  double Time(int calls, const std::function<void(int)>& op, const std::function<void()>& before) {
    const cudaStream_t stream = context_.stream();
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    before();
    op(0);  // plans and attributes before the capture
    WEFT_CUDA_CHECK(cudaStreamSynchronize(stream));
    WEFT_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < calls; ++i) op(i);
    WEFT_CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
    WEFT_CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
    constexpr int kWarm = 5, kLaunches = 60;
    std::vector<cudaEvent_t> events(2 * kLaunches);
    for (cudaEvent_t& event : events) WEFT_CUDA_CHECK(cudaEventCreate(&event));
    for (int i = -kWarm; i < kLaunches; ++i) {
      before();
      if (i >= 0) WEFT_CUDA_CHECK(cudaEventRecord(events[static_cast<size_t>(2 * i)], stream));
      WEFT_CUDA_CHECK(cudaGraphLaunch(exec, stream));
      if (i >= 0) WEFT_CUDA_CHECK(cudaEventRecord(events[static_cast<size_t>(2 * i) + 1], stream));
    }
    WEFT_CUDA_CHECK(cudaStreamSynchronize(stream));
    std::vector<float> ms(kLaunches);
    for (size_t i = 0; i < ms.size(); ++i) {
      WEFT_CUDA_CHECK(cudaEventElapsedTime(&ms[i], events[2 * i], events[2 * i + 1]));
    }
    for (cudaEvent_t event : events) cudaEventDestroy(event);
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    std::nth_element(ms.begin(), ms.begin() + kLaunches / 2, ms.end());
    return ms[kLaunches / 2] * 1e3 / calls;
  }

  CudaContext context_;
  FILE* json_ = nullptr;
  const char* comma_ = "";
  bool failed_ = false;
};

inline std::string Size(int64_t n) {
  return n % (1 << 20) == 0 ? std::to_string(n >> 20) + "M"
         : n % 1024 == 0    ? std::to_string(n >> 10) + "K"
                            : std::to_string(n);
}

// The cases, by kernel.
void IndexScores(Bench* bench);
void SelectTop(Bench* bench);

}  // namespace weft::bench
