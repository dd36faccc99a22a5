#include "kernels/cpu/isa_ops.h"
#include "kernels/cpu/math.h"
#include "kernels/ops/elementwise.h"

namespace weft::WEFT_ISA_NS {

namespace {

// f(offset, lanes) over a row of n, 16 lanes at a time; the last call may have fewer.
template <typename F>
WEFT_INLINE void ForLanes(int64_t n, F f) {
  for (int64_t i = 0; i < n; i += kLanes) f(i, n - i < kLanes ? n - i : int64_t{kLanes});
}

}  // namespace

void Embed(const EmbedParams& p, const Exec& exec) {
  ParallelFor(exec, p.rows, GrainFor(p.dim), [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      float* out = p.out + r * p.dim;
      const int64_t from = int64_t{p.tokens[r]} * p.dim;
      if (p.dtype == DType::kBF16) {
        const uint16_t* row = static_cast<const uint16_t*>(p.table) + from;
        ForLanes(p.dim, [&](int64_t i, int64_t n) { StoreN(out + i, LoadN(row + i, n), n); });
      } else {
        memcpy(out, static_cast<const float*>(p.table) + from,
               static_cast<size_t>(p.dim) * sizeof(float));
      }
    }
  });
}

void RmsNorm(const RmsNormParams& p, const Exec& exec) {
  ParallelFor(exec, p.rows, GrainFor(4 * int64_t{p.dim}), [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      const float* x = p.x + r * p.x_stride;
      float* out = p.out + r * p.out_stride;
      Vec16 squares = Zero();
      ForLanes(p.dim, [&](int64_t i, int64_t n) {
        const Vec16 v = LoadN(x + i, n);
        squares = Fma(v, v, squares);
      });
      const float mean = ReduceAdd(squares) / static_cast<float>(p.dim);
      const Vec16 inverse = Div(Set(1.0f), Sqrt(Set(mean + p.eps)));
      ForLanes(p.dim, [&](int64_t i, int64_t n) {
        StoreN(out + i, Mul(Mul(LoadN(x + i, n), inverse), LoadN(p.weight + i, n)), n);
      });
    }
  });
}

void LayerNorm(const LayerNormParams& p, const Exec& exec) {
  ParallelFor(exec, p.rows, GrainFor(6 * int64_t{p.dim}), [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      const float* x = p.x + r * p.x_stride;
      float* out = p.out + r * p.out_stride;
      Vec16 sum = Zero();
      ForLanes(p.dim, [&](int64_t i, int64_t n) { sum = Add(sum, LoadN(x + i, n)); });
      const Vec16 mean = Set(ReduceAdd(sum) / static_cast<float>(p.dim));
      Vec16 squares = Zero();
      ForLanes(p.dim, [&](int64_t i, int64_t n) {
        const Vec16 d = Select(FirstLanes(n), Sub(LoadN(x + i, n), mean), Zero());
        squares = Fma(d, d, squares);
      });
      const float variance = ReduceAdd(squares) / static_cast<float>(p.dim);
      const Vec16 inverse = Div(Set(1.0f), Sqrt(Set(variance + p.eps)));
      ForLanes(p.dim, [&](int64_t i, int64_t n) {
        const Vec16 d = Mul(Sub(LoadN(x + i, n), mean), inverse);
        StoreN(out + i, Fma(d, LoadN(p.weight + i, n), LoadN(p.bias + i, n)), n);
      });
    }
  });
}

void Rope(const RopeParams& p, const Exec& exec) {
  const int64_t half = p.dim / 2;
  const int64_t step = p.interleaved ? 2 : 1;
  const int64_t other = p.interleaved ? 1 : half;
  ParallelFor(exec, p.rows, GrainFor(8 * int64_t{p.heads} * p.dim),
              [&](int64_t begin, int64_t end, int) {
                for (int64_t r = begin; r < end; ++r) {
                  const float* cos = p.cos + r * half;
                  const float* sin = p.sin + r * half;
                  for (int64_t h = 0; h < p.heads; ++h) {
                    float* x = p.x + r * p.row_stride + h * p.head_stride;
                    for (int64_t i = 0; i < half; ++i) {
                      const float a = x[i * step];
                      const float b = x[i * step + other];
                      x[i * step] = __builtin_fmaf(a, cos[i], -(b * sin[i]));
                      x[i * step + other] = __builtin_fmaf(b, cos[i], a * sin[i]);
                    }
                  }
                }
              });
}

void Hadamard(const HadamardParams& p, const Exec& exec) {
  if ((p.dim & (p.dim - 1)) != 0) __builtin_trap();
  const float scale = 1.0f / __builtin_sqrtf(static_cast<float>(p.dim));
  ParallelFor(exec, p.rows, GrainFor(8 * int64_t{p.dim}), [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      float* x = p.x + r * p.dim;
      for (int64_t half = 1; half < p.dim; half *= 2) {
        for (int64_t i = 0; i < p.dim; i += 2 * half) {
          for (int64_t j = i; j < i + half; ++j) {
            const float a = x[j], b = x[j + half];
            x[j] = a + b;
            x[j + half] = a - b;
          }
        }
      }
      for (int64_t i = 0; i < p.dim; ++i) x[i] *= scale;
    }
  });
}

void SiluMul(const SiluMulParams& p, const Exec& exec) {
  ParallelFor(exec, p.rows, GrainFor(16 * int64_t{p.dim}), [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      const float* gate = p.gate + r * p.gate_stride;
      const float* up = p.up + r * p.up_stride;
      float* out = p.out + r * p.out_stride;
      ForLanes(p.dim, [&](int64_t i, int64_t n) {
        StoreN(out + i, Mul(Silu(LoadN(gate + i, n)), LoadN(up + i, n)), n);
      });
    }
  });
}

void AddInPlace(const AddParams& p, const Exec& exec) {
  ParallelFor(exec, p.count, GrainFor(2), [&](int64_t begin, int64_t end, int) {
    ForLanes(end - begin, [&](int64_t i, int64_t n) {
      float* x = p.x + begin + i;
      StoreN(x, Add(LoadN(x, n), LoadN(p.y + begin + i, n)), n);
    });
  });
}

}  // namespace weft::WEFT_ISA_NS
