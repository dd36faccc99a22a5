// What weft-engine --capture keeps.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace weft {

// A set of whole numbers from 0: "all", ranges as "0,100-199", or, by Share, a share as "0.05".
class IndexSet {
 public:
  // False for any other text. A share is a number in (0, 1] with a decimal point: which numbers it
  // holds is drawn by the number alone, so the same for every sequence and in every run.
  static bool Parse(const std::string& text, bool may_be_share, IndexSet* set);

  bool Has(int32_t index) const;
  int32_t Greatest() const;  // of the ranges; -1: not ranges

 private:
  double share_ = 1;
  std::vector<std::pair<int32_t, int32_t>> ranges_;  // first and last; empty: the share
};

struct CaptureOptions {
  std::string path;  // empty: no capture
  IndexSet layers;
  IndexSet queries;    // positions
  bool scores = true;  // of the indexer
  bool logits = false;
  std::string summary;               // of all but the path, for ranks to agree on
  int64_t limit = int64_t{1} << 30;  // bytes of tensors; what comes later is left out
};

}  // namespace weft
