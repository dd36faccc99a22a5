// How much a second round of certified mode brings: every item ahead of u, the union's K-th, that
// the first lists left out. These are more than the missing ones, for u ranks behind the K-th of
// all.
#pragma once

#include "kernels/select/load_law.h"

namespace weft {

// E[items of the second round of a pair], 0 where there is none: sum over s >= K of
// P(sum_g min(L_g(s), m) < K), L(s) the loads of the s foremost items of all, by the law of
// load_law.h (for a context hypergeometric: see Johnson, Kotz, Balakrishnan, Discrete Multivariate
// Distributions, chapter 39; further_law.cc says how it is summed). Exact to 1e-4 where the lists
// have up to 64 places more than K, else within a percent or two; never less than ExpectedMissed.
// The bound of second_round.h, K - A_g items of a rank, is not in it. Thrown with it, they were a
// quarter fewer at G = 2, 4 to 8 % at G = 4, and 1 to 5 % at G = 8 and 64, with m near K/G.
double ExpectedFurther(const LoadLaw& law, int64_t m);

}  // namespace weft
