// Tokenizes strings for differential.py, and measures throughput.
//
//   tokenize_lines <tokenizer.json> < strings       each line of stdin a JSON string
//       writes a line per string: ids separated by spaces
//   tokenize_lines <tokenizer.json> --plain < ...   the same with parse_special off
//   tokenize_lines <tokenizer.json> --bench FILE    tokenizes the whole file, prints MB/s
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "server/text/detokenizer.h"
#include "server/text/tokenizer.h"

namespace {

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

int Bench(const weft::text::Tokenizer& tokenizer, const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  for (int run = 0; run < 3; ++run) {
    const double start = Seconds();
    const std::vector<int32_t> ids = tokenizer.Encode(text);
    const double encoded = Seconds();
    const std::string back = weft::text::Decode(tokenizer, ids, /*skip_special=*/false);
    const double decoded = Seconds();
    const double mb = static_cast<double>(text.size()) / 1e6;
    std::printf("%.2f MB, %zu tokens: encode %.3f s, %.1f MB/s; decode %.1f MB/s; %s\n", mb,
                ids.size(), encoded - start, mb / (encoded - start), mb / (decoded - encoded),
                back == text ? "decodes to the input" : "DECODES TO OTHER TEXT");
    if (back != text) return 1;
  }
  return 0;
}

int Run(int argc, char** argv) {
  const double start = Seconds();
  const auto tokenizer = weft::text::Tokenizer::FromFile(argv[1]);
  const std::string mode = argc > 2 ? argv[2] : "";
  if (mode == "--bench" && argc > 3) {
    std::printf("loaded in %.2f s\n", Seconds() - start);
    return Bench(tokenizer, argv[3]);
  }
  std::string line;
  while (std::getline(std::cin, line)) {
    const auto text = nlohmann::json::parse(line).get<std::string>();
    std::string ids;
    for (const int32_t id : tokenizer.Encode(text, mode != "--plain")) {
      if (!ids.empty()) ids += ' ';
      ids += std::to_string(id);
    }
    std::puts(ids.c_str());
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string first = argc > 1 ? argv[1] : "";
  if (first.empty() || first == "--help" || first == "-h") {
    std::fprintf(first.empty() ? stderr : stdout,
                 "usage: tokenize_lines tokenizer.json [--plain | --bench FILE]\n"
                 "Ids of the strings on stdin, a JSON string a line (--plain: special tokens are\n"
                 "text); --bench: the speed over FILE.\n");
    return first.empty() ? 2 : 0;
  }
  try {
    return Run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "tokenize_lines: %s\n", error.what());
    return 1;
  }
}
