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
  static_assert(sizeof(select::Group) * select::kMaxTeams <= CudaContext::kSyncBytes);
  const CudaContext& context = CudaContext::From(exec);
  const int64_t n = p.scores_stride, sms = std::min(context.sms(), select::kMaxCtas);
  // Few rows have the device to themselves, many a block each.
  int64_t ctas = 1;
  if (p.rows <= select::kMaxTeams) {
    const int64_t useful = (n + select::kWorthABlock - 1) / select::kWorthABlock;
    const int64_t most = std::min(sms, select::kBlocksAtOnce * sms / p.rows);
    ctas = std::max<int64_t>(1, std::min(useful, most));
  }
  const int64_t chunk = ((n + ctas - 1) / ctas + 3) / 4 * 4;
  const int64_t kept = (chunk + select::kAtOnce - 1) / select::kAtOnce * select::kAtOnce;
  if (kept <= select::kMostKept) {
    select::Launch<true>(p, ctas, kept, context);
  } else {
    select::Launch<false>(p, ctas, 0, context);
  }
}

}  // namespace weft::cuda
