// How many tokens each rank picks (m), from index_topk (K), ranks (G) and coverage (gamma).
// Model: each of the K best tokens lies on one of G ranks independently and uniformly, so the loads
// are Multinomial(K; 1/G, ..., 1/G) and the union covers the top-K iff the greatest load is <= m.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace weft {

enum class SelectionMode : uint8_t { kExact = 0, kInterleaved = 1, kCertified = 2, kDense = 3 };
enum class MRule : uint8_t { kExactProbability = 0, kFormula = 1 };

const char* Name(SelectionMode mode);
// False for an unknown name; *mode is then untouched.
bool ParseSelectionMode(const std::string& name, SelectionMode* mode);

// Standard normal quantile; p in (0, 1).
double NormalQuantile(double p);

// m = ceil(K/G + z sqrt(K (G-1)) / G + 0.5), z the quantile at 1 - (1-gamma)/G: the published
// formula, a normal approximation with a union bound. G = 1 gives K. Clipped to [ceil(K/G), K].
int64_t FormulaM(int64_t K, int64_t G, double gamma);

// P(max_g L_g <= m), exact up to rounding; load_law.h has more of that law.
double CoverProbability(int64_t K, int64_t G, int64_t m);

// The smallest m with CoverProbability(K, G, m) >= gamma; gamma = 1 gives K.
int64_t ExactM(int64_t K, int64_t G, double gamma);

// What one request (or the server's default) resolved to; the same on every rank.
struct SelectionPlan {
  SelectionMode mode = SelectionMode::kExact;
  int32_t topk = 0;     // K = index_topk in force
  int32_t m = 0;        // list length per rank: K in exact mode, 0 in dense mode (no lists)
  double gamma = 0.99;  // coverage wanted per query and layer; meaningless in exact and dense
  // Of each layer with an indexer, in their order, 1 to m; empty: m in every layer.
  std::vector<int32_t> layer_m = {};

  // G >= 1, K >= 1, gamma in (0, 1]. Exact mode, and G = 1 in every mode but dense, give m = K.
  static SelectionPlan Make(SelectionMode mode, int32_t topk, int32_t ranks, double gamma,
                            MRule rule = MRule::kExactProbability);

  // Of the n-th layer with an indexer.
  int32_t LayerM(size_t n) const { return layer_m.empty() ? m : layer_m.at(n); }

  // A row at position t (t+1 visible tokens) with t+1 <= K sees everything: nothing is cut.
  bool Selects(int64_t t) const { return mode != SelectionMode::kDense && t + 1 > topk; }
};

}  // namespace weft
