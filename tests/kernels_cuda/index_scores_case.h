// Cases of index scores: queries and a sequence's or several sequences' keys of any type, and how
// they are scored on the device and on the host.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "kernels/ops/index_select.h"
#include "tests/kernels_cuda/gpu.h"

namespace weft::gpu {

using namespace weft::test;

struct Scores {
  int64_t rows = 0;
  int32_t heads = 0, dim = 0, page = 0;
  DType dtype = DType::kBF16;
  std::vector<float> q, w, keys;  // keys: [pages, page, dim], as on the device
  std::vector<char> fp8;          // the same as FP8 pages of the host
  std::vector<int32_t> table;     // all tables, one after the other
  std::vector<int32_t> table_of;  // [rows], or empty: one table for all
  std::vector<int64_t> visible;
  int64_t stride = 0, table_stride = 0;
};

inline IndexCache Fp8Cache(const Scores& s, void* data) {
  return {data, DType::kF8E4M3, s.page, s.dim};
}

inline float FromE4m3(uint8_t x) {
  const int exponent = x >> 3 & 15, mantissa = x & 7;
  const float magnitude = exponent == 0
                              ? std::ldexp(static_cast<float>(mantissa), -9)
                              : std::ldexp(1 + static_cast<float>(mantissa) / 8, exponent - 7);
  return (x & 0x80) != 0 ? -magnitude : magnitude;
}

// Calls body(key, its byte on the host of dimension d, that on the device, scale's byte of both).
template <typename Body>
void ForFp8Bytes(const Scores& s, Body body) {
  const int64_t count = static_cast<int64_t>(s.keys.size()) / s.dim, P = s.page;
  for (int64_t key = 0; key < count; ++key) {
    const int64_t begin = key / P * Fp8Cache(s, nullptr).PageBytes(), row = key % P;
    for (int64_t d = 0; d < s.dim; ++d) {
      body(key, d, begin + d * P + row, begin + row * s.dim + d, begin + P * s.dim + 4 * row);
    }
  }
}

// Makes s.fp8 of the keys, and the keys what it holds.
inline void Quantise(Scores* s) {
  const int64_t count = static_cast<int64_t>(s->keys.size()) / s->dim;
  std::vector<int64_t> slots(static_cast<size_t>(count));
  std::iota(slots.begin(), slots.end(), 0);
  s->fp8.resize(static_cast<size_t>(count / s->page * Fp8Cache(*s, nullptr).PageBytes()));
  CpuOps(DetectIsa())
      .write_index({count, s->keys.data(), s->dim, slots.data(), Fp8Cache(*s, s->fp8.data())}, {});
  ForFp8Bytes(*s, [&](int64_t key, int64_t d, int64_t host, int64_t, int64_t scale_at) {
    float scale;
    std::memcpy(&scale, s->fp8.data() + scale_at, 4);
    s->keys[static_cast<size_t>(key * s->dim + d)] =
        FromE4m3(static_cast<uint8_t>(s->fp8[static_cast<size_t>(host)])) * scale;
  });
}

inline Scores Make(Random* random, std::vector<int64_t> visible, int32_t heads, int32_t dim,
                   int32_t page, DType dtype) {
  Scores s;
  s.rows = static_cast<int64_t>(visible.size());
  s.heads = heads;
  s.dim = dim;
  s.page = page;
  s.dtype = dtype;
  s.visible = std::move(visible);
  const int64_t greatest = *std::max_element(s.visible.begin(), s.visible.end());
  s.stride = (greatest + 15) / 16 * 16;
  const int64_t pages = (greatest + page - 1) / page;
  s.q = random->Floats(s.rows * heads * dim);
  s.w = random->Floats(s.rows * heads);
  // Twice the pages, the sequence's own in reverse, so that a wrong page shows.
  s.keys = random->Floats(2 * (pages + 1) * dim * page);
  if (dtype == DType::kBF16) s.keys = Rounded(s.keys);
  if (dtype == DType::kF8E4M3) Quantise(&s);
  for (int64_t i = 0; i < pages; ++i) s.table.push_back(static_cast<int32_t>(2 * (pages - i)));
  return s;
}

// Every row a sequence of its own: other pages in its table than in the next one's.
inline void SetApart(Scores* s) {
  const std::vector<int32_t> one = s->table;
  s->table_stride = static_cast<int64_t>(one.size()) + 3;
  s->table.assign(static_cast<size_t>(s->rows * s->table_stride), 0);
  for (int64_t r = 0; r < s->rows; ++r) {
    s->table_of.push_back(static_cast<int32_t>((r + 1) % s->rows));
    for (size_t i = 0; i < one.size(); ++i) {
      s->table[static_cast<size_t>(s->table_of.back() * s->table_stride) + i] =
          one[(i + static_cast<size_t>(r)) % one.size()];
    }
  }
}

inline std::vector<char> DeviceKeys(const Scores& s) {
  if (s.dtype != DType::kF8E4M3) return Encode(s.keys, s.dtype);
  std::vector<char> bytes = s.fp8;
  ForFp8Bytes(s, [&](int64_t, int64_t, int64_t host, int64_t device, int64_t) {
    bytes[static_cast<size_t>(device)] = s.fp8[static_cast<size_t>(host)];
  });
  return bytes;
}

// Also checks the counts by bins.
inline std::vector<float> RunScores(const Scores& s, bool exact) {
  const Device<float> q(s.q), w(s.w);
  const Device<float> out(std::vector<float>(static_cast<size_t>(s.rows * s.stride), 9.0f));
  const Device<char> keys(DeviceKeys(s));
  const Device<int32_t> table(s.table), table_of(s.table_of);
  const Device<int64_t> visible(s.visible);
  std::vector<uint32_t> counts(static_cast<size_t>(s.rows * kScoreBins));
  const Device<uint32_t> bins(counts);
  IndexScoresParams p{
      s.rows,       s.heads,        q.data(),   w.data(), {keys.data(), s.dtype, s.page, s.dim},
      table.data(), visible.data(), out.data(), s.stride};
  if (!s.table_of.empty()) p.table_of = table_of.data();
  p.table_stride = s.table_stride;
  CudaOps()->index_scores(p, Context().exec(exact));
  const std::vector<float> uncounted = out.Host();
  p.bins = bins.data();
  CudaOps()->index_scores(p, Context().exec(exact));
  const std::vector<float> scores = out.Host();
  for (int64_t r = 0; r < s.rows; ++r) {
    for (int64_t i = 0; i < s.visible[static_cast<size_t>(r)]; ++i) {
      const uint32_t key = OrderKey(scores[static_cast<size_t>(r * s.stride + i)]);
      ++counts[static_cast<size_t>(r * kScoreBins + ScoreBin(key))];
    }
  }
  Check(bins.Host() == counts, "counts by bins");
  Check(BitsDiffer(uncounted, scores, static_cast<size_t>(s.stride)), "with bins and without");
  return scores;
}

// On the host keys have their dimensions outermost; `wide`: as fp32, whatever the dtype.
template <typename Op>
std::vector<float> HostScores(const Scores& s, bool wide, Op op) {
  std::vector<float> keys(s.keys.size());
  for (int64_t i = 0; i < static_cast<int64_t>(keys.size()); ++i) {
    const int64_t slot = i / s.dim, d = i % s.dim;
    keys[static_cast<size_t>((slot / s.page * s.dim + d) * s.page + slot % s.page)] =
        s.keys[static_cast<size_t>(i)];
  }
  const DType dtype = wide ? DType::kF32 : s.dtype;
  std::vector<char> encoded = dtype == DType::kF8E4M3 ? s.fp8 : Encode(keys, dtype);
  std::vector<float> out(static_cast<size_t>(s.rows * s.stride), 9.0f);
  for (int64_t r = 0; r < s.rows; ++r) {
    const int64_t table = s.table_of.empty() ? 0 : s.table_of[static_cast<size_t>(r)];
    op({1,
        s.heads,
        s.q.data() + r * s.heads * s.dim,
        s.w.data() + r * s.heads,
        {encoded.data(), dtype, s.page, s.dim},
        s.table.data() + table * s.table_stride,
        s.visible.data() + r,
        out.data() + r * s.stride,
        s.stride});
  }
  return out;
}

}  // namespace weft::gpu
