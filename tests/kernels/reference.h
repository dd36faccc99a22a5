// Every operation as plain loops in double over fp32 inputs: the meaning that both backends are
// judged by, with the edge cases spelled out. Nothing here is fast or vectorised.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/ops/ops.h"

namespace weft::ref {

inline constexpr double kInf = std::numeric_limits<double>::infinity();

inline float FromBf16(uint16_t x) {
  const uint32_t bits = static_cast<uint32_t>(x) << 16;
  float y;
  std::memcpy(&y, &bits, sizeof(y));
  return y;
}

// To nearest by search among the two neighbours; ties to the even one. NaN stays NaN.
inline uint16_t ToBf16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  const auto down = static_cast<uint16_t>(bits >> 16);
  if (std::isnan(x)) return static_cast<uint16_t>(down | 0x40);
  const uint32_t rest = bits & 0xFFFF;
  const bool up = rest > 0x8000 || (rest == 0x8000 && (down & 1) != 0);
  return static_cast<uint16_t>(down + (up ? 1 : 0));
}

inline double At(const void* data, DType dtype, int64_t i) {
  return dtype == DType::kBF16 ? FromBf16(static_cast<const uint16_t*>(data)[i])
                               : static_cast<const float*>(data)[i];
}

inline double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// w: row-major [N, K].
inline void Linear(const LinearParams& p, const void* w) {
  for (int64_t m = 0; m < p.rows; ++m) {
    for (int64_t n = 0; n < p.weight.n; ++n) {
      double sum = 0;
      for (int64_t k = 0; k < p.weight.k; ++k) {
        sum += p.x[m * p.x_stride + k] * At(w, p.weight.dtype, n * p.weight.k + k);
      }
      float& y = p.y[m * p.y_stride + n];
      y = static_cast<float>(p.accumulate ? y + sum : sum);
    }
  }
}

inline void Embed(const EmbedParams& p) {
  for (int64_t r = 0; r < p.rows; ++r) {
    for (int64_t i = 0; i < p.dim; ++i) {
      p.out[r * p.dim + i] =
          static_cast<float>(At(p.table, p.dtype, int64_t{p.tokens[r]} * p.dim + i));
    }
  }
}

inline void RmsNorm(const RmsNormParams& p) {
  for (int64_t r = 0; r < p.rows; ++r) {
    const float* x = p.x + r * p.x_stride;
    double squares = 0;
    for (int64_t i = 0; i < p.dim; ++i) squares += double{x[i]} * x[i];
    const double inverse = 1 / std::sqrt(squares / p.dim + p.eps);
    for (int64_t i = 0; i < p.dim; ++i) {
      p.out[r * p.out_stride + i] = static_cast<float>(x[i] * inverse * p.weight[i]);
    }
  }
}

inline void LayerNorm(const LayerNormParams& p) {
  for (int64_t r = 0; r < p.rows; ++r) {
    const float* x = p.x + r * p.x_stride;
    double mean = 0, squares = 0;
    for (int64_t i = 0; i < p.dim; ++i) mean += x[i] / double{1.0 * p.dim};
    for (int64_t i = 0; i < p.dim; ++i) squares += (x[i] - mean) * (x[i] - mean);
    const double inverse = 1 / std::sqrt(squares / p.dim + p.eps);
    for (int64_t i = 0; i < p.dim; ++i) {
      p.out[r * p.out_stride + i] =
          static_cast<float>((x[i] - mean) * inverse * p.weight[i] + p.bias[i]);
    }
  }
}

inline void Rope(const RopeParams& p) {
  for (int64_t r = 0; r < p.rows; ++r) {
    for (int64_t h = 0; h < p.heads; ++h) {
      for (int64_t i = 0; i < p.dim / 2; ++i) {
        float* x = p.x + r * p.row_stride + h * p.head_stride;
        float& a = x[p.interleaved ? 2 * i : i];
        float& b = x[p.interleaved ? 2 * i + 1 : i + p.dim / 2];
        const double cos = p.cos[r * p.dim / 2 + i], sin = p.sin[r * p.dim / 2 + i];
        const double x0 = a, x1 = b;
        a = static_cast<float>(x0 * cos - x1 * sin);
        b = static_cast<float>(x1 * cos + x0 * sin);
      }
    }
  }
}

inline void SiluMul(const SiluMulParams& p) {
  for (int64_t r = 0; r < p.rows; ++r) {
    for (int64_t i = 0; i < p.dim; ++i) {
      const double gate = p.gate[r * p.gate_stride + i];
      p.out[r * p.out_stride + i] =
          static_cast<float>(gate * Sigmoid(gate) * p.up[r * p.up_stride + i]);
    }
  }
}

inline void IndexScores(const IndexScoresParams& p) {
  const int64_t P = p.keys.page_tokens, di = p.keys.dim;
  for (int64_t r = 0; r < p.rows; ++r) {
    for (int64_t s = 0; s < p.visible[r]; ++s) {
      double score = 0;
      for (int64_t h = 0; h < p.heads; ++h) {
        double dot = 0;
        for (int64_t d = 0; d < di; ++d) {
          dot += p.q[(r * p.heads + h) * di + d] *
                 At(p.keys.data, p.keys.dtype, (p.block_table[s / P] * di + d) * P + s % P);
        }
        score += p.w[r * p.heads + h] * (dot < 0 ? 0 : dot);  // NaN passes
      }
      p.scores[r * p.scores_stride + s] = static_cast<float>(score);
    }
  }
}

// By a full sort in the one order.
inline void SelectTop(const SelectTopParams& p) {
  for (int64_t r = 0; r < p.rows; ++r) {
    std::vector<Item> all;
    for (int64_t s = 0; s < p.visible[r]; ++s) {
      all.push_back({OrderKey(p.scores[r * p.scores_stride + s]), static_cast<int32_t>(s)});
    }
    std::sort(all.begin(), all.end(), Precedes);
    const size_t take = std::min(static_cast<size_t>(p.m[r]), all.size());
    p.counts[r] = static_cast<int32_t>(take);
    p.excluded[r] = take < all.size() ? all[take] : Item{};
    all.resize(take);
    std::sort(all.begin(), all.end(), [](Item a, Item b) { return a.index < b.index; });
    all.resize(static_cast<size_t>(p.items_stride));  // padded with index -1
    std::copy(all.begin(), all.end(), p.items + r * p.items_stride);
  }
}

// o is the finished output, lse may be null. No valid entry: output 0, lse -inf.
inline void SparseMla(const SparseMlaParams& p, float* o, float* lse) {
  const int64_t width = p.latent + p.rope;
  for (int64_t i = 0; i < p.rows * p.heads; ++i) {
    const int32_t* list = p.lists + i / p.heads * p.list_stride;
    std::vector<double> score(static_cast<size_t>(p.counts[i / p.heads]), -kInf);
    double max = -kInf, sum = 0;
    for (size_t j = 0; j < score.size(); ++j) {
      if (list[j] < 0) continue;
      double dot = 0;
      for (int64_t d = 0; d < width; ++d) {
        dot += p.q[i * width + d] * At(p.kv, p.kv_dtype, list[j] * width + d);
      }
      score[j] = dot * p.scale;
      max = score[j] > max || std::isnan(score[j]) ? score[j] : max;
    }
    std::vector<double> out(static_cast<size_t>(p.latent), 0.0);
    for (size_t j = 0; j < score.size(); ++j) {
      if (list[j] < 0) continue;
      const double weight = std::exp(score[j] - max);
      sum += weight;
      for (size_t d = 0; d < out.size(); ++d) {
        out[d] += weight * At(p.kv, p.kv_dtype, list[j] * width + static_cast<int64_t>(d));
      }
    }
    for (size_t d = 0; d < out.size(); ++d) {
      o[i * p.latent + static_cast<int64_t>(d)] = static_cast<float>(sum == 0 ? 0 : out[d] / sum);
    }
    if (lse != nullptr) lse[i] = static_cast<float>(sum == 0 ? -kInf : max + std::log(sum));
  }
}

// A part whose sum is 0 says nothing; when all do, the output is 0.
inline void MergeMla(const MergeMlaParams& p) {
  const int64_t c = p.latent;
  for (int64_t row = 0; row < p.rows; ++row) {
    double max = -kInf, total = 0;
    std::vector<double> out(static_cast<size_t>(c), 0.0);
    const auto part_at = [&](int32_t part) { return p.in + (part * p.rows + row) * (c + 2); };
    for (int32_t part = 0; part < p.parts; ++part) {
      if (part_at(part)[c + 1] != 0) max = std::max(max, double{part_at(part)[c]});
    }
    for (int32_t part = 0; part < p.parts; ++part) {
      const float* o = part_at(part);
      if (o[c + 1] == 0) continue;
      const double weight = std::exp(o[c] - max);
      total += weight * o[c + 1];
      for (size_t d = 0; d < out.size(); ++d) out[d] += weight * o[d];
    }
    for (size_t d = 0; d < out.size(); ++d) {
      p.out[row * c + static_cast<int64_t>(d)] =
          static_cast<float>(total == 0 ? 0 : out[d] / total);
    }
  }
}

// Sorts experts by (choice descending, id ascending).
inline void Route(const RouteParams& p) {
  const int32_t E = p.experts, size = E / p.groups;
  const auto best_first = [](const std::vector<double>& v) {
    std::vector<int32_t> order(v.size());
    for (size_t i = 0; i < v.size(); ++i) order[i] = static_cast<int32_t>(i);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return v[static_cast<size_t>(a)] > v[static_cast<size_t>(b)];
    });
    return order;
  };
  for (int64_t r = 0; r < p.rows; ++r) {
    std::vector<double> choice(static_cast<size_t>(E)), group(static_cast<size_t>(p.groups));
    for (int32_t e = 0; e < E; ++e) {
      choice[static_cast<size_t>(e)] = Sigmoid(p.logits[r * E + e]) + p.bias[e];
    }
    for (int32_t g = 0; g < p.groups; ++g) {
      std::vector<double> v(choice.begin() + g * size, choice.begin() + (g + 1) * size);
      std::sort(v.rbegin(), v.rend());
      group[static_cast<size_t>(g)] = v[0] + (size > 1 ? v[1] : 0);
    }
    const std::vector<int32_t> groups = best_first(group);
    for (int32_t i = p.topk_groups; i < p.groups; ++i) {
      std::fill_n(choice.begin() + groups[static_cast<size_t>(i)] * size, size, -kInf);
    }
    std::vector<int32_t> ids = best_first(choice);
    ids.resize(static_cast<size_t>(p.topk));
    std::sort(ids.begin(), ids.end());
    double sum = 0;
    for (int32_t e : ids) sum += Sigmoid(p.logits[r * E + e]);
    for (int32_t j = 0; j < p.topk; ++j) {
      const int32_t e = ids[static_cast<size_t>(j)];
      p.ids[r * p.topk + j] = e;
      p.weights[r * p.topk + j] = static_cast<float>(Sigmoid(p.logits[r * E + e]) /
                                                     (p.normalize ? sum + 1e-20 : 1) * p.scale);
    }
  }
}

inline void Combine(const CombineParams& p) {
  for (int64_t i = 0; i < p.rows * p.dim; ++i) {
    const int64_t r = i / p.dim, d = i % p.dim;
    double sum = p.shared[i];
    for (int64_t j = 0; j < p.topk; ++j) {
      sum +=
          double{p.weights[r * p.topk + j]} * p.expert_out[p.pair_of[r * p.topk + j] * p.dim + d];
    }
    p.y[i] = static_cast<float>(sum);
  }
}

// A tile of -inf alone has maximum -inf and sum 0.
inline void LogitTiles(const LogitTilesParams& p) {
  const int64_t tiles = (p.count + kVocabTile - 1) / kVocabTile;
  for (int64_t t = 0; t < p.rows * tiles; ++t) {
    const int64_t begin = t % tiles * kVocabTile;
    const int64_t end = std::min<int64_t>(begin + kVocabTile, p.count);
    const float* x = p.logits + t / tiles * p.stride;
    double max = -kInf, sum = 0;
    for (int64_t i = begin; i < end; ++i) max = x[i] > max ? x[i] : max;
    for (int64_t i = begin; i < end; ++i) sum += x[i] == -kInf ? 0 : std::exp(x[i] - max);
    p.max[t] = static_cast<float>(max);
    p.sum[t] = static_cast<float>(sum);
  }
}

}  // namespace weft::ref
