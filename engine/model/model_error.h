// What every part of the model loader throws: the message names file, key or tensor, value and
// rule.
#pragma once

#include <stdexcept>

namespace weft {

class ModelError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace weft
