// weft-engine's command line, where values could pass that are no numbers or have no meaning.
#include "engine/app/options.h"

#include <catch2/catch.hpp>
#include <iostream>
#include <sstream>

namespace weft {
namespace {

using Catch::Matchers::Contains;

struct Parsed {
  bool runs = false;
  int code = 0;
  EngineOptions options;
  std::string text;
};

Parsed Parse(const std::string& option, const std::string& value) {
  std::string words[] = {"weft-engine", "--model", "m", option + "=" + value};
  char* argv[] = {words[0].data(), words[1].data(), words[2].data(), words[3].data()};
  Parsed parsed;
  const std::ostringstream text;
  std::streambuf* const before = std::cerr.rdbuf(text.rdbuf());
  parsed.runs = ParseOptions(4, argv, &parsed.options, &parsed.code);
  std::cerr.rdbuf(before);
  parsed.text = text.str();
  return parsed;
}

}  // namespace

TEST_CASE("options: times shares and ratios are numbers within bounds") {
  const struct {
    const char *option, *range;
    bool zero;  // is one of them
  } rules[] = {{"--startup-timeout", "(0, 1e+06]", false},
               {"--step-timeout", "(0, 1e+06]", false},
               {"--priority-aging", "[0.001, 1e+06]", false},
               {"--max-step-ratio", "[0, 1e+06]", true},
               {"--max-step-ms", "[0, 1e+06]", true},
               {"--audit", "[0, 1]", true},
               {"--coverage", "(0, 1]", false}};
  for (const auto& [option, range, zero] : rules) {
    for (const char* bad : {"nan", "-nan", "inf", "-1", "1e300", "1e10", "1e400", "x", "1x", ""}) {
      const Parsed parsed = Parse(option, bad);
      INFO(option << " " << bad << ": " << parsed.text);
      CHECK_FALSE(parsed.runs);
      CHECK(parsed.code == 2);
      if (*bad == 0) continue;
      CHECK_THAT(parsed.text, Contains(std::string(option) + ": must be a number in " + range +
                                       ", got '" + bad + "'"));
    }
    CHECK(Parse(option, "0").runs == zero);
    CHECK(Parse(option, "0.5").runs);
    CHECK(Parse(option, "1").runs);
  }
  CHECK(Parse("--startup-timeout", "1e6").options.startup_timeout == 1e6);
  CHECK(Parse("--audit", "0.25").options.audit == 0.25);
}

TEST_CASE("options: a size below zero is none") {
  CHECK_FALSE(Parse("--kv-memory", "-5").runs);
  CHECK(Parse("--kv-memory", "8GiB").options.kv_memory == int64_t{8} << 30);
}

}  // namespace weft
