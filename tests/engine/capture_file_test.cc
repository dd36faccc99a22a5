// The file of a capture on a disk that becomes full.
#include "engine/run/capture_file.h"

#include <sys/resource.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <filesystem>

#include "tests/model/safetensors_writer.h"

namespace weft::test {

// Files of this process grow no further, as on a full disk, while this lives.
class SmallDisk {
 public:
  explicit SmallDisk(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit small{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &small);
  }
  ~SmallDisk() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  void (*handler_)(int);
};

TEST_CASE("capture: a disk that is full at the end is an error") {
  const TempDir dir;
  const std::string path = dir / "capture.safetensors";
  {
    CaptureFile file(path);
    for (int i = 0; i < 3; ++i) file.Add("t" + std::to_string(i), std::vector<float>(500'000, 1));
    file.Finish({{"what", "all"}});
  }
  const auto whole = std::filesystem::file_size(path);
  REQUIRE(whole > 6'000'000);
  CaptureFile file(path);
  for (int i = 0; i < 3; ++i) file.Add("t" + std::to_string(i), std::vector<float>(500'000, 1));
  const SmallDisk disk(whole - 100);  // room for all but the header, which only the file has
  CHECK_THROWS_WITH(file.Finish({{"what", "all"}}),
                    Catch::Matchers::Contains("cannot write " + path + ": File too large"));
}

}  // namespace weft::test
