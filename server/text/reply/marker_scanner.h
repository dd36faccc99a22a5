// Finds marks in text that comes in pieces, and holds back only what may still become one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace weft::text {

class MarkerScanner {
 public:
  static constexpr int kNone = -1;

  void Append(std::string_view text) { pending_.append(text); }
  // Puts text that was taken away back in front.
  void Unread(std::string_view text) { pending_.insert(0, text); }

  // Appends to *text what comes before the first of `marks`, takes both away, and returns which
  // mark it is: the one that starts first. No mark may begin with another. kNone: none is complete;
  // *text got all that cannot belong to one, or, with `at_end`, everything.
  int Next(const std::vector<std::string_view>& marks, bool at_end, std::string* text);

 private:
  std::string pending_;
};

}  // namespace weft::text
