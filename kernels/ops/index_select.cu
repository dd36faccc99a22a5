// Selection on CUDA: how rows are spread over the device.
#include <algorithm>

#include "kernels/cuda/check.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/select_top.cuh"

namespace weft::cuda {

void SelectTop(const SelectTopParams& p, const Exec& exec) {
  if (p.rows == 0) return;
  WEFT_CUDA_REQUIRE(
      p.inbox.ranks == 1 || (p.rows <= p.inbox.rows && p.items_stride <= p.inbox.capacity),
      "select_top: the list has no room in the inbox");
  constexpr int kMaxShared = 227 * 1024 - 1024;
  constexpr int kMaxRoom = (kMaxShared - select::kFixedBytes) / 4;
  constexpr int64_t kWorthACta = 2048;  // slots
  static_assert(sizeof(select::Group) * select::kMaxCtas <= CudaContext::kSyncBytes);
  CudaContext& context = CudaContext::From(exec);
  const int64_t sms = std::min(context.sms(), select::kMaxCtas);
  // Blocks of a row: all the device for one row, one block a row for many.
  const int64_t useful = std::max<int64_t>(1, (p.scores_stride + kWorthACta - 1) / kWorthACta);
  const int64_t ctas = std::min(useful, std::max<int64_t>(1, sms / p.rows));
  const int64_t groups = std::min(p.rows, sms / ctas);
  const int64_t chunk = ((p.scores_stride + ctas - 1) / ctas + 3) / 4 * 4;
  auto* lists = static_cast<uint2*>(context.Scratch(
      static_cast<size_t>(groups) * select::kMaxCandidates * sizeof(uint2), "select_top"));
  const int room = chunk <= kMaxRoom ? static_cast<int>(chunk) : 0;
  const auto kernel = select::Kernel;
  WEFT_CUDA_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMaxShared));
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeCooperative;  // blocks of a group wait for each other
  attribute.val.cooperative = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(groups * ctas));
  config.blockDim = dim3(select::kThreads);
  config.dynamicSmemBytes = static_cast<size_t>(select::kFixedBytes + room * 4);
  config.stream = context.stream();
  config.attrs = &attribute;
  config.numAttrs = 1;
  WEFT_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, p, static_cast<int>(ctas), room,
                                     static_cast<select::Group*>(context.sync()), lists));
}

}  // namespace weft::cuda
