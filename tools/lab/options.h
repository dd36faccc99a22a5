// The command line of weft-lab.
#pragma once

#include <string>

#include "tools/lab/study/study.h"

namespace weft::lab {

struct Options {
  Spec spec;
  std::string csv;  // a file, "-" for standard output in place of the table
  std::string svg;  // a folder
};

// -1, or the exit code with which to end: 0 after --help, 2 after a bad command line.
int ParseOptions(int argc, char** argv, Options* options);

}  // namespace weft::lab
