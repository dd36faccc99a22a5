#include "engine/app/load_progress.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

// What is said when every one of `steps` equal parts takes so many seconds.
std::vector<std::string> Lines(int steps, double seconds_each) {
  std::vector<std::string> lines;
  double now = 100;
  const weft::LoadProgress progress = weft::MakeLoadProgress(
      [&] { return now; }, [&](const std::string& line) { lines.push_back(line); });
  for (int64_t i = 1; i <= steps; ++i) {
    now += seconds_each;
    progress(i * kGiB, steps * kGiB);
  }
  return lines;
}

}  // namespace

TEST_CASE("a short load tells its end alone") {
  CHECK(Lines(40, 0.1) == std::vector<std::string>{"weights: 40.00 GiB loaded in 4.0 s"});
  CHECK(Lines(1, 0) == std::vector<std::string>{"weights: 1.00 GiB loaded in 0.0 s"});
  CHECK(Lines(1, 60) == std::vector<std::string>{"weights: 1.00 GiB loaded in 60.0 s"});
}

TEST_CASE("a long load tells how far it is every five seconds") {
  CHECK(Lines(12, 1) == std::vector<std::string>{"weights: 5.00 GiB of 12.00 GiB after 5.0 s",
                                                 "weights: 10.00 GiB of 12.00 GiB after 10.0 s",
                                                 "weights: 12.00 GiB loaded in 12.0 s"});
  CHECK(Lines(3, 20) == std::vector<std::string>{"weights: 1.00 GiB of 3.00 GiB after 20.0 s",
                                                 "weights: 2.00 GiB of 3.00 GiB after 40.0 s",
                                                 "weights: 3.00 GiB loaded in 60.0 s"});
  CHECK(Lines(10000, 0.01).size() == 20);
}
