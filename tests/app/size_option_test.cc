#include "engine/app/size_option.h"

#include <catch2/catch.hpp>

using Catch::Matchers::Contains;
using weft::AddSize;
using weft::ParseSize;

TEST_CASE("sizes are read as written") {
  const struct {
    const char* text;
    int64_t bytes;
  } good[] = {{"0", 0},
              {"1", 1},
              {"100B", 100},
              {"2K", 2000},
              {"2kb", 2000},
              {"2Ki", 2048},
              {"512MB", 512000000},
              {"512MiB", int64_t{512} << 20},
              {"4gib", int64_t{4} << 30},
              {"3TiB", int64_t{3} << 40},
              {"9223372036854775807", INT64_MAX}};
  for (const auto& [text, bytes] : good) {
    CAPTURE(text);
    int64_t value = -1;
    CHECK(ParseSize(text, &value));
    CHECK(value == bytes);
  }
  for (const char* bad :
       {"", "B", "MB", "-1", "-5MB", "+1", " 1", "1 ", "1.5GB", "0x10", "4GB4", "4GG", "4iB", "4Xi",
        "4GiBB", "9223372036854775808", "9999999999GB", "9999999999999999999999"}) {
    CAPTURE(bad);
    int64_t value = 0;
    CHECK_FALSE(ParseSize(bad, &value));
  }
}

TEST_CASE("a size option has a default as one would write it, a least value, and one voice") {
  CLI::App app;
  int64_t any = 0, some = int64_t{64} << 20, odd = 1000;
  AddSize(app, "--any", &any, 0, "any");
  AddSize(app, "--some", &some, 4, "some", "no thing needs none");
  AddSize(app, "--odd", &odd, 1, "odd");
  CHECK_THAT(app.help(), Contains("--any SIZE=0 ") && Contains("--some SIZE=64MiB ") &&
                             Contains("--odd SIZE=1000 "));
  app.parse("--any 0 --some 1KiB");
  CHECK(any == 0);
  CHECK(some == 1024);
  const std::string rule = "must be a size such as 512MB, 4GiB or a number of bytes";
  CHECK_THROWS_WITH(app.parse("--any much"), "--any: " + rule + ", got 'much'");
  CHECK_THROWS_WITH(app.parse("--some 3"), "--some: " + rule + ", at least 4, got '3'");
  CHECK_THROWS_WITH(app.parse("--some 0"),
                    "--some: " + rule + ", at least 4, got '0'; no thing needs none");
  CHECK(some == 1024);
}
