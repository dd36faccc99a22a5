// Memory on the device: blocks that live as long as their owner, buffers that grow, and the inputs
// of a step, which travel in one copy.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/cuda/check.h"

namespace weft {

// Never freed before the pool.
class DevicePool {
 public:
  DevicePool() = default;
  ~DevicePool() {
    for (void* block : blocks_) cudaFree(block);
  }
  DevicePool(const DevicePool&) = delete;
  DevicePool& operator=(const DevicePool&) = delete;

  void* Allocate(size_t bytes) {
    void* block = nullptr;
    WEFT_CUDA_CHECK(cudaMalloc(&block, bytes > 0 ? bytes : 16));
    blocks_.push_back(block);
    return block;
  }
  // Returns when the copy is there.
  void* Upload(const void* host, size_t bytes) {
    void* block = Allocate(bytes);
    WEFT_CUDA_CHECK(cudaMemcpy(block, host, bytes, cudaMemcpyHostToDevice));
    return block;
  }
  template <typename T>
  const T* Upload(const std::vector<T>& host) {
    return static_cast<const T*>(Upload(host.data(), host.size() * sizeof(T)));
  }

 private:
  std::vector<void*> blocks_;
};

// A buffer that only grows; its contents are what was last written. Growing waits for the device.
// `generation` counts how often any buffer of its owner moved, which ends the life of graphs.
template <typename T>
class DeviceBuffer {
 public:
  explicit DeviceBuffer(int64_t* generation = nullptr) : generation_(generation) {}
  ~DeviceBuffer() { cudaFree(data_); }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  T* Get(int64_t count) {
    if (count <= capacity_) return data_;
    WEFT_CUDA_CHECK(cudaDeviceSynchronize());
    WEFT_CUDA_CHECK(cudaFree(data_));
    data_ = nullptr;
    capacity_ = 0;
    WEFT_CUDA_CHECK(cudaMalloc(&data_, static_cast<size_t>(count) * sizeof(T)));
    capacity_ = count;
    if (generation_ != nullptr) ++*generation_;
    return data_;
  }
  T* data() const { return data_; }

 private:
  T* data_ = nullptr;
  int64_t capacity_ = 0;
  int64_t* generation_;
};

// Memory of the host that the device can read and write by itself.
class PinnedBuffer {
 public:
  explicit PinnedBuffer(int64_t* generation = nullptr) : generation_(generation) {}
  ~PinnedBuffer() { cudaFreeHost(data_); }
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;

  // Grows, keeping nothing.
  char* Get(size_t bytes) {
    if (bytes <= capacity_) return data_;
    WEFT_CUDA_CHECK(cudaDeviceSynchronize());
    WEFT_CUDA_CHECK(cudaFreeHost(data_));
    data_ = nullptr;
    capacity_ = 0;
    WEFT_CUDA_CHECK(cudaMallocHost(&data_, bytes));
    capacity_ = bytes;
    if (generation_ != nullptr) ++*generation_;
    return data_;
  }
  char* data() const { return data_; }

 private:
  char* data_ = nullptr;
  size_t capacity_ = 0;
  int64_t* generation_;
};

// Arrays gathered on the host, copied to the device at once. Offsets are known before the copy, so
// that a graph can be made for them.
class StepInputs {
 public:
  explicit StepInputs(int64_t* generation) : device_(generation) {}
  void Clear() { host_.clear(); }

  template <typename T>
  size_t Add(const std::vector<T>& values) {
    const size_t at = host_.size(), bytes = values.size() * sizeof(T);
    host_.resize(at + (bytes + 15) / 16 * 16 + 16);
    if (bytes > 0) std::memcpy(host_.data() + at, values.data(), bytes);
    return at;
  }

  // The stream must have done with the inputs before.
  void Upload(cudaStream_t stream) {
    char* pinned = pinned_.Get(host_.size());
    std::memcpy(pinned, host_.data(), host_.size());
    char* device = device_.Get(static_cast<int64_t>(host_.size()));
    WEFT_CUDA_CHECK(cudaMemcpyAsync(device, pinned, host_.size(), cudaMemcpyHostToDevice, stream));
  }
  template <typename T>
  const T* At(size_t offset) const {
    return reinterpret_cast<const T*>(device_.data() + offset);
  }

 private:
  std::vector<char> host_;
  PinnedBuffer pinned_;
  DeviceBuffer<char> device_;
};

}  // namespace weft
