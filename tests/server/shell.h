// Programs run by a line of shell.
#pragma once

#include <string>

namespace weft::server {

struct Ran {
  int code = -1;
  std::string out;
  std::string err;
};

// Runs the line to its end; throws std::runtime_error when that does not come.
Ran Shell(const std::string& line);

}  // namespace weft::server
