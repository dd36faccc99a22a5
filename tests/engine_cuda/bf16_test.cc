// bf16 caches and tensor cores: teacher-forced log-probabilities against the CPU in fp32.
#include <algorithm>
#include <cmath>

#include "tests/engine_cuda/on_gpu.h"

namespace weft::test {
namespace {

LogitsTap::Rows Logits(const ClusterOptions& options, const std::vector<int32_t>& ids, int32_t m) {
  Cluster cluster(options);
  LogitsTap tap(&cluster);
  cluster.RunStep(WholePrompt(cluster, ids, m > 0 ? Interleaved(cluster, m) : Exact(cluster)));
  return tap.Take();
}

// Mean over tokens of KL(want || got).
double MeanKl(const LogitsTap::Rows& got, const LogitsTap::Rows& want) {
  double sum = 0;
  for (const auto& [key, row] : want) {
    const std::vector<float>& other = got.at(key);
    const auto normaliser = [](const std::vector<float>& x) {
      const double max = *std::max_element(x.begin(), x.end());
      double total = 0;
      for (float v : x) total += std::exp(v - max);
      return max + std::log(total);
    };
    const double a = normaliser(row), b = normaliser(other);
    for (size_t i = 0; i < row.size(); ++i) {
      sum += std::exp(row[i] - a) * ((row[i] - a) - (other[i] - b));
    }
  }
  return sum / static_cast<double>(want.size());
}

// Tokens whose best id differs although it leads by more than `bound`.
int64_t OtherArgmax(const LogitsTap::Rows& got, const LogitsTap::Rows& want, float bound) {
  int64_t others = 0;
  for (const auto& [key, row] : want) {
    std::vector<float> sorted = row;
    std::partial_sort(sorted.begin(), sorted.begin() + 2, sorted.end(), std::greater<float>());
    if (sorted[0] - sorted[1] <= bound) continue;
    const std::vector<float>& other = got.at(key);
    const auto best = std::max_element(row.begin(), row.end()) - row.begin();
    others += std::max_element(other.begin(), other.end()) - other.begin() != best;
  }
  return others;
}

}  // namespace

TEST_CASE("demo model in bf16 on the GPU: KL within 1e-3 of the CPU in fp32") {
  WEFT_NEEDS_GPU();
  const int ranks = GENERATE(1, 2);
  const int32_t m = GENERATE(0, 150);
  CAPTURE(ranks, m);
  ClusterOptions options{DemoModel(), ranks};
  options.page_tokens = 64;
  options.positions = 2048;
  options.threads = 8;
  const std::vector<int32_t> ids = Document(1500);
  const LogitsTap::Rows want = Logits(options, ids, ranks == 1 ? 0 : m);
  options.kv = options.index = DType::kBF16;
  const LogitsTap::Rows got = Logits(OnGpu(options), ids, ranks == 1 ? 0 : m);
  const double kl = MeanKl(got, want);
  WARN("mean KL " << kl);
  CHECK(kl <= 1e-3);
  CHECK(kl > 1e-12);  // it is bf16 indeed
  CHECK(OtherArgmax(got, want, 0.25f) == 0);
}

}  // namespace weft::test
