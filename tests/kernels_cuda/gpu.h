// A small test program's harness for GPU hosts, where only the CUDA toolkit and a compiler are sure
// to be: registration, checks that say what differs, and arrays on the device.
#pragma once

#include <algorithm>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "kernels/cuda/check.h"
#include "kernels/cuda/context.h"
#include "kernels/ops/ops.h"
#include "tests/kernels/compare.h"
#include "tests/kernels/random.h"
#include "tests/kernels/reference.h"

namespace weft::gpu {

struct Case {
  const char* name;
  void (*run)();
};

// Registered cases, failures so far, and whether sizes are to stay small (under a sanitizer).
struct Session {
  std::vector<Case> cases;
  int checks = 0, failures = 0;
  bool small = false;
  CudaContext* context = nullptr;
};
Session& TheSession();

inline CudaContext& Context() { return *TheSession().context; }

// `what` is empty when all is well, else what differs.
inline void Check(const std::string& what, const std::string& where) {
  Session& session = TheSession();
  ++session.checks;
  if (what.empty()) return;
  if (++session.failures <= 40) std::printf("  FAILED %s: %s\n", where.c_str(), what.c_str());
}
inline void Check(bool good, const std::string& where) {
  Check(std::string(good ? "" : "false"), where);
}

struct Register {
  Register(const char* name, void (*run)()) { TheSession().cases.push_back({name, run}); }
};

#define WEFT_JOIN2(a, b) a##b
#define WEFT_JOIN(a, b) WEFT_JOIN2(a, b)
#define GPU_TEST(name)                                                                           \
  static void WEFT_JOIN(GpuTest, __LINE__)();                                                    \
  static const weft::gpu::Register WEFT_JOIN(kGpuTest, __LINE__)(name,                           \
                                                                 &WEFT_JOIN(GpuTest, __LINE__)); \
  static void WEFT_JOIN(GpuTest, __LINE__)()

// A copy of a host array in device memory. Behind it is no more than the rest of its last 16 bytes,
// which a kernel may read along (a sanitizer takes an asynchronous copy of a part for one of all).
template <typename T>
class Device {
 public:
  explicit Device(const std::vector<T>& host) : size_(host.size()) {
    WEFT_CUDA_CHECK(cudaMalloc(&data_, std::max<size_t>(16, (size_ * sizeof(T) + 15) / 16 * 16)));
    Set(host);
  }
  ~Device() { cudaFree(data_); }
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  T* data() const { return static_cast<T*>(data_); }
  void Set(const std::vector<T>& host) {
    WEFT_CUDA_CHECK(cudaMemcpy(data_, host.data(), size_ * sizeof(T), cudaMemcpyHostToDevice));
    WEFT_CUDA_CHECK(cudaDeviceSynchronize());  // the context's stream does not wait for this copy
  }
  std::vector<T> Host() const {
    WEFT_CUDA_CHECK(cudaStreamSynchronize(Context().stream()));
    std::vector<T> host(size_);
    WEFT_CUDA_CHECK(cudaMemcpy(host.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost));
    return host;
  }

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
};

// Worst over rows of |got - want| / |want|, NaN and infinities having to be equal.
inline double WorstRow(const std::vector<float>& got, const std::vector<float>& want,
                       size_t width) {
  double worst = 0;
  for (size_t begin = 0; begin + width <= want.size(); begin += width) {
    double error = 0, norm = 0;
    for (size_t i = begin; i < begin + width; ++i) {
      const double x = got[i], y = want[i];
      if (std::isnan(x) && std::isnan(y)) continue;
      if (x == y) continue;
      error += (x - y) * (x - y);
      norm += y * y;
    }
    if (error != 0) worst = std::max(worst, norm == 0 ? 1e30 : std::sqrt(error / norm));
    if (std::isnan(error)) return 1e30;
  }
  return worst;
}

inline void CheckRows(const std::vector<float>& got, const std::vector<float>& want, size_t width,
                      double bound, const std::string& where) {
  const double worst = WorstRow(got, want, width);
  Check(worst <= bound ? "" : "worst row error " + std::to_string(worst), where);
}

// As the tensor cores see fp32 activations.
inline std::vector<float> Rounded(std::vector<float> v) {
  for (float& x : v) x = ref::FromBf16(ref::ToBf16(x));
  return v;
}

}  // namespace weft::gpu
