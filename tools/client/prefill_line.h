// The sentence that says how far the server has read a prompt.
#pragma once

#include <string>

namespace weft::client {

class PrefillLine {
 public:
  // `done` of `total` tokens, `seconds` after the question. The time that is left is told once two
  // reports gave a speed, as if the rest went at that.
  std::string Text(int done, int total, double seconds);

 private:
  int first_done_ = -1;  // of this reading: a later one may begin anew
  int last_done_ = 0;
  double first_seconds_ = 0;
};

}  // namespace weft::client
