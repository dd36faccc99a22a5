// Gives back what attention read for single queries that rank 0 asked about, in chosen layers.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "engine/comm/communicator.h"
#include "engine/run/batch.h"
#include "engine/run/exchange.h"

namespace weft {

// Of one query in one layer.
struct SelectedTokens {
  int64_t sequence = 0;
  int32_t position = 0;  // of the query
  int32_t layer = 0;
  bool all = false;                // nothing was cut: every position up to the query's own
  std::vector<int32_t> positions;  // ascending; empty when all
};

class Trace {
 public:
  Trace(Communicator* comm, Exchange exchange) : comm_(comm), exchange_(exchange) {}

  void Begin(const Batch& batch);
  // What attention reads for a token, ascending.
  using List = std::function<std::vector<int32_t>(int32_t token)>;
  // After the layer's selection; one that shares indices has that of the last full layer.
  void Layer(int layer, const List& list);
  // On rank 0, in the order of StepPlan::traced; an exchange of all ranks where lists are shares.
  std::vector<SelectedTokens> Finish();

 private:
  void Join();

  Communicator* comm_;
  const Exchange exchange_;
  const StepPlan* plan_ = nullptr;
  std::vector<int32_t> tokens_;        // [traced], numbers in the batch; -1: not in this step
  std::vector<SelectedTokens> found_;  // [traced]
};

}  // namespace weft
