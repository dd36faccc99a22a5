// Exchange `partial`: the queries of all heads go to every rank, which attends its own tokens of
// each list where they lie in its cache; outputs go back to the owners of the heads and are merged
// in ascending rank order. Tokens run in tiles that fit the workspace.
#include <algorithm>
#include <numeric>

#include "engine/cuda/cuda_exchange.h"
#include "kernels/ops/ops.h"

namespace weft {

void CudaExchange::AttendPartial() {
  const int64_t heads = std::accumulate(head_counts_.begin(), head_counts_.end(), int64_t{0});
  // Queries and outputs, each once as used and once as it travels.
  const int64_t token_bytes = heads * 4 * (params_.latent + params_.rope) * 4;
  const int64_t stride = LongestList(0, params_.rows);
  const int64_t tile = std::max<int64_t>(
      1, std::min(workspace_bytes_ / token_bytes, (int64_t{128} << 20) / (stride * 4)));
  for (int64_t begin = 0; begin < params_.rows; begin += tile) {
    const int64_t tokens = std::min(tile, params_.rows - begin);
    CacheListsParams own;
    own.rows = tokens;
    own.first = begin;
    own.placement = placement_;
    own.rank = comm_->rank();
    own.own = true;
    own.lists = selection_->lists();
    own.list_stride = selection_->list_stride();
    own.counts = selection_->counts();
    own.dense = device_->dense;
    own.pages = device_->pages;
    own.out = lists_.Get(tokens * stride);
    own.out_stride = stride;
    own.out_counts = counts_.Get(tokens);
    CacheListsCuda(own, exec_);

    SparseMlaParams p = params_;
    p.rows = tokens;
    p.heads = static_cast<int32_t>(heads);
    p.q = GatherQueries(begin, tokens);
    p.q_is_there = false;
    p.kv = cache_.data;
    p.lists = lists_.data();
    p.list_stride = stride;
    p.counts = counts_.data();
    p.max = all_max_.Get(tokens * heads);
    p.sum = all_sum_.Get(tokens * heads);
    p.o = all_out_.Get(tokens * heads * p.latent);
    InitSparseMlaCuda(p, exec_);
    ops_.sparse_mla(p, exec_);
    ReturnOutputs(begin, tokens);
  }
}

// [tokens, H, c + dr]
const float* CudaExchange::GatherQueries(int64_t begin, int64_t tokens) {
  const int64_t width = params_.latent + params_.rope;
  const int64_t heads = std::accumulate(head_counts_.begin(), head_counts_.end(), int64_t{0});
  const float* own = params_.q + begin * params_.heads * width;
  float* queries = queries_.Get(tokens * heads * width);
  std::vector<size_t> bytes;
  for (int32_t count : head_counts_) {
    bytes.push_back(static_cast<size_t>(tokens * count * width) * sizeof(float));
  }
  // Ranks' blocks of one token lie side by side already.
  float* target = tokens == 1 ? queries : receive_out_.Get(tokens * heads * width);
  comm_->AllGather(own, target, bytes);
  if (tokens == 1) return queries;
  int64_t before = 0;
  for (int32_t count : head_counts_) {
    const auto block_width = static_cast<int32_t>(count * width);
    PickRowsCuda({tokens, block_width, target + tokens * before * width, block_width, nullptr,
                  queries + before * width, heads * width},
                 exec_);
    before += count;
  }
  return queries;
}

void CudaExchange::ReturnOutputs(int64_t begin, int64_t tokens) {
  const int64_t c = params_.latent, entry = c + 2;
  const int64_t heads = std::accumulate(head_counts_.begin(), head_counts_.end(), int64_t{0});
  float* send = send_out_.Get(tokens * heads * entry);
  float* receive = receive_out_.Get(placement_.ranks * tokens * params_.heads * entry + 1);
  std::vector<size_t> send_bytes, receive_bytes;
  int64_t before = 0;
  for (int32_t count : head_counts_) {
    float* block = send + tokens * before * entry;
    const auto copy = [&](const float* x, int32_t width, float* out) {
      CopyHeadsCuda({tokens, count, width, x + before * width, heads * width, width, out,
                     count * entry, entry},
                    exec_);
    };
    copy(all_out_.data(), static_cast<int32_t>(c), block);
    copy(all_max_.data(), 1, block + c);
    copy(all_sum_.data(), 1, block + c + 1);
    before += count;
    send_bytes.push_back(static_cast<size_t>(tokens * count * entry) * sizeof(float));
    receive_bytes.push_back(static_cast<size_t>(tokens * params_.heads * entry) * sizeof(float));
  }
  comm_->AllToAll(send, send_bytes, receive, receive_bytes);
  ops_.merge_mla({tokens * params_.heads, placement_.ranks, params_.latent, receive,
                  params_.o + begin * params_.heads * c},
                 exec_);
}

}  // namespace weft
