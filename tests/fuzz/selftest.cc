// A target with a fault, for the test of the driver: it dies of an input that holds both words of
// its dictionary, which the corpus does not.
#include <string>

#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string input(data, data + size);
  const bool fatal =
      input.find("needle") != std::string::npos && input.find("hay") != std::string::npos;
  weft::fuzz::Require(!fatal, "no needle in the hay");
  return 0;
}
