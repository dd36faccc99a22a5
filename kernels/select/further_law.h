// How much a second round of certified mode brings: every item ahead of u, the union's K-th, that
// the first lists left out. These are more than the missing ones, for u ranks behind the K-th of
// all.
#pragma once

#include "kernels/select/load_law.h"

namespace weft {

// E[items of the second round of a pair], 0 where there is none. Within a percent or so where lists
// are hardly longer than K/G and second rounds are the rule; where they are rare never less than
// ExpectedMissed. A context only bounds it by what the lists leave out.
double ExpectedFurther(const LoadLaw& law, int64_t m);

}  // namespace weft
