// A serialised StepPlan: either refused, or a plan whose rows lie inside its arrays and that means
// the same after another trip.
#include <stdexcept>

#include "engine/plan/step_plan.h"
#include "tests/fuzz/fuzz.h"

namespace weft::fuzz {
namespace {

bool Inside(int64_t begin, int64_t count, size_t size) {
  return begin >= 0 && count >= 0 && begin + count <= static_cast<int64_t>(size);
}

void CheckRow(const StepPlan& plan, const PlanRow& row) {
  Require(Inside(row.tokens_begin, row.count, plan.tokens.size()), "tokens of a row are there");
  Require(Inside(row.pages_begin, row.pages_count, plan.pages.size()), "pages of a row are there");
  Require(Inside(0, row.logits_begin, static_cast<size_t>(row.count)), "logits are of its tokens");
  Require(row.targets_begin < 0 ||
              Inside(row.targets_begin, row.count - row.logits_begin, plan.targets.size()),
          "targets of a row are there");
  Require(row.selection.mode <= SelectionMode::kDense, "a mode that there is");
}

}  // namespace
}  // namespace weft::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  weft::StepPlan plan;
  try {
    plan = weft::ParsePlan({reinterpret_cast<const char*>(data), size});
  } catch (const std::runtime_error&) {
    return 0;
  }
  for (const weft::PlanRow& row : plan.rows) weft::fuzz::CheckRow(plan, row);
  const std::string bytes = weft::SerializePlan(plan);
  weft::fuzz::Require(bytes.size() == size, "every byte was read");
  weft::fuzz::Require(weft::SerializePlan(weft::ParsePlan(bytes)) == bytes, "the same again");
  return 0;
}
