// The law of the loads: how many of the K best tokens lie on each of G ranks. The union of the
// local top-m holds the whole top-K if and only if no load exceeds m.
//   context 0  each token falls on a rank by chance: Multinomial(K; 1/G, ..., 1/G)
//   context N  K of N positions are the best, each set alike: multivariate hypergeometric over
//              ranks of floor(N/G) or ceil(N/G) positions (round-robin, and rotated with b = 1)
#pragma once

#include <cstdint>
#include <vector>

namespace weft {

// Ranks of one size.
struct RankKind {
  int64_t ranks = 0;
  int64_t positions = 0;  // of each; 0: no bound
  // What one keeps at most.
  int64_t Cap(int64_t m) const { return positions > 0 && positions < m ? positions : m; }
};

struct LoadLaw {
  int64_t K = 1;
  int64_t G = 1;
  int64_t context = 0;  // N; 0: no bound

  // What can be selected at all: min(K, N).
  int64_t Top() const { return context > 0 && context < K ? context : K; }
  // The most that one rank can hold of it; a list needs no more.
  int64_t GreatestLoad() const;
  std::vector<RankKind> Kinds() const;  // of ranks with a position
  // Tokens in the union of lists of m: sum over ranks of min(m, positions of the rank).
  int64_t Union(int64_t m) const;
};

// P(some load > m). Relative error below 1e-6 wherever it lies, absolute error below 1e-11: by
// convolution, and below 1e-6 by the sum over ranks, which there is the same.
double MissProbability(const LoadLaw& law, int64_t m);

// P(no load > m) = 1 - MissProbability.
double CoverProbability(const LoadLaw& law, int64_t m);

// ln P(no load > m): finite also where the probability itself underflows; -inf if it is 0.
double LogCoverProbability(const LoadLaw& law, int64_t m);

// E[sum_g max(0, L_g - m)], the tokens of the top-K that the union lacks.
double ExpectedMissed(const LoadLaw& law, int64_t m);
// 1 - ExpectedMissed / Top().
double ExpectedRecall(const LoadLaw& law, int64_t m);

// The smallest m of at least Top() / G with MissProbability <= 1 - gamma; gamma = 1 gives
// GreatestLoad().
int64_t SmallestM(const LoadLaw& law, double gamma);

}  // namespace weft
