// The command line of weft-plan.
#pragma once

#include <vector>

#include "tools/plan/plan.h"

namespace weft::plan {

struct Options {
  std::vector<Question> questions;  // one per G and coverage
  bool json = false;
};

// -1, or the exit code with which to end: 0 after --help, 2 after a bad command line.
int ParseOptions(int argc, char** argv, Options* options);

}  // namespace weft::plan
