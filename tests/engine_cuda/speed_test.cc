// Not a test of right or wrong: what a decode step and a prefill take. Run by name.
#include <chrono>

#include "tests/engine_cuda/on_gpu.h"

namespace weft::test {

TEST_CASE("time of decode steps and prefill of the demo model", "[measure]") {
  WEFT_NEEDS_GPU();
  const int batch = GENERATE(1, 8, 64);
  const bool graphs = GENERATE(true, false);
  ClusterOptions options{DemoModel(), 1};
  options.kv = options.index = DType::kBF16;
  options.page_tokens = 64;
  options.positions = 4096 * (batch + 1);
  options.max_sequences = batch;
  options.graphs = graphs;
  Cluster cluster(OnGpu(options));
  Driver driver(&cluster, {.chunk = 4096, .prefix_cache = false});
  std::vector<double> decode, prefill;
  int64_t prefilled = 0;
  auto last = std::chrono::steady_clock::now();
  driver.after_step = [&](const StepPlan& plan, const StepResult&) {
    const auto now = std::chrono::steady_clock::now();
    const double seconds = std::chrono::duration<double>(now - last).count();
    last = now;
    const bool pure = plan.TokenCount() == static_cast<int64_t>(plan.rows.size());
    if (pure && static_cast<int>(plan.rows.size()) == batch) decode.push_back(seconds);
    if (!pure) {
      prefill.push_back(seconds);
      prefilled += plan.TokenCount();
    }
  };
  std::vector<EngineRequest> requests(static_cast<size_t>(batch),
                                      Ask(Document(3900), 60 + 2 * batch, Exact(cluster)));
  driver.Run(requests);
  REQUIRE(!decode.empty());
  std::sort(decode.begin(), decode.end());
  double total = 0;
  for (double seconds : prefill) total += seconds;
  const double step = decode[decode.size() / 2];
  WARN("batch " << batch << (graphs ? ", graphs" : ", eager") << ": decode step " << step * 1e3
                << " ms, " << batch / step << " tokens/s; prefill "
                << static_cast<double>(prefilled) / total << " tokens/s");
}

}  // namespace weft::test
