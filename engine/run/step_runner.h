// One rank's forward pass, on whatever it runs.
#pragma once

#include "engine/plan/step_plan.h"
#include "engine/run/step_result.h"

namespace weft {

class StepRunner {
 public:
  virtual ~StepRunner() = default;

  // All ranks together. The result is complete on rank 0. Throws CommError when a rank is lost, and
  // std::runtime_error on a plan that does not follow the step committed last.
  virtual StepResult Run(const StepPlan& plan) = 0;
};

}  // namespace weft
