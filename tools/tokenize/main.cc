// weft-tokenize: token ids for weft-engine --script, without a server. Exit codes: 0; 1 when a file
// or a line cannot be read; 2 for a bad command line.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "server/text/tokenizer.h"

int main(int argc, char** argv) {
  CLI::App app(
      "weft-tokenize: reads a JSON string a line from standard input, and writes the ids of each "
      "as "
      "a JSON list. Special tokens are read as such, and none are added.",
      "weft-tokenize");
  app.set_version_flag("--version", std::string("weft-tokenize ") + WEFT_VERSION);
  std::string model;
  app.add_option("--model", model, "Folder with tokenizer.json")->required();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  size_t number = 0;
  try {
    const auto tokenizer = weft::text::Tokenizer::FromFile(model + "/tokenizer.json");
    for (std::string line; ++number, std::getline(std::cin, line);) {
      const auto text = nlohmann::json::parse(line).get<std::string>();
      std::cout << nlohmann::json(tokenizer.Encode(text)).dump() << '\n';
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "weft-tokenize: %s%s\n",
                 number > 0 ? ("line " + std::to_string(number) + ": ").c_str() : "", error.what());
    return 1;
  }
  return std::cout.flush() ? 0 : 1;
}
