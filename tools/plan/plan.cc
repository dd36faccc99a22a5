#include "tools/plan/plan.h"

#include <algorithm>

#include "kernels/select/further_law.h"
#include "kernels/select/load_law.h"
#include "kernels/select/selection_plan.h"

namespace weft::plan {
namespace {

Lists Judge(const LoadLaw& law, int64_t m) {
  return {m, CoverProbability(law, m), law.Union(m), ExpectedMissed(law, m),
          ExpectedRecall(law, m)};
}

Certified JudgeCertified(const LoadLaw& law, const StepCost& step, int64_t m) {
  return {Judge(law, m), ExpectedSecondRounds(law, step, m), ExpectedFurther(law, m),
          CertifiedCost(law, step, m)};
}

void CountBytes(const LoadLaw& law, Answer* answer) {
  ExchangeShape shape = answer->question.shape;
  shape.G = law.G;
  shape.K = law.Top();
  shape.capacity = law.context > 0 ? (law.context + law.G - 1) / law.G : law.Top();
  const Lists& certified = answer->certified.lists;
  const double failing = MissProbability(law, certified.m);
  const double further = failing > 0 ? answer->certified.further / failing : 0;
  for (Exchange exchange : {Exchange::kRows, Exchange::kPartial}) {
    const auto bytes = [&](SelectionMode mode, int64_t m, int64_t attended) {
      const double lists = answer->trivial ? 0 : SelectionBytes(shape, exchange, mode, m);
      return Bytes{lists, AttentionBytes(shape, exchange, static_cast<double>(attended)), 0};
    };
    Bytes* out = answer->bytes[static_cast<int>(exchange)];
    const int64_t m = answer->exact.m;
    out[0] = bytes(SelectionMode::kExact, law.Top(), law.Top());
    out[1] = bytes(SelectionMode::kInterleaved, m, law.Union(m));
    out[2] = bytes(SelectionMode::kCertified, certified.m, certified.united);
    out[2].second_round = failing * SecondRoundBytes(shape, exchange, certified.m, further);
  }
}

}  // namespace

Answer Solve(const Question& question) {
  Answer answer;
  answer.question = question;
  const LoadLaw endless{question.K, question.G, 0};
  const LoadLaw law{question.K, question.G, question.context};
  answer.formula = Judge(endless, FormulaM(question.K, question.G, question.gamma));
  answer.exact = Judge(endless, SmallestM(endless, question.gamma));
  if (question.context > 0) {
    answer.trivial = question.context <= question.K;
    const int64_t m = answer.trivial ? law.GreatestLoad() : SmallestM(law, question.gamma);
    answer.context = Judge(law, m);
    // A row that sees no more than K tokens keeps them all, whatever m is.
    answer.exact_in_context = Judge(law, answer.trivial ? m : answer.exact.m);
  }
  const int64_t safe = SmallestM(endless, question.certified_gamma);
  answer.certified = JudgeCertified(law, question.step, answer.trivial ? law.GreatestLoad() : safe);
  answer.cheapest =
      JudgeCertified(law, question.step,
                     answer.trivial ? law.GreatestLoad() : CheapestCertifiedM(law, question.step));
  CountBytes(law, &answer);
  return answer;
}

}  // namespace weft::plan
