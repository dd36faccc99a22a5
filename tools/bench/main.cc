// weft-bench: measures. Results go to stdout, progress and errors to stderr.
// Exit codes: 0 measured, 1 error or wrong answers, 2 wrong usage.
#include <CLI/CLI.hpp>
#include <iostream>

#include "tools/bench/serve/options.h"
#include "tools/bench/serve/serve.h"

int main(int argc, char** argv) {
  CLI::App app("weft-bench: measures Weft. Each thing to measure is a subcommand.");
  app.set_version_flag("--version", std::string("weft-bench ") + WEFT_VERSION);
  app.require_subcommand(1);
  weft::bench::ServeOptions serve;
  weft::bench::AddServe(&app, &serve);
  try {
    app.parse(argc, argv);
    weft::bench::CheckServe(app, serve);
  } catch (const CLI::ParseError& error) {
    return app.exit(error, std::cout, std::cerr) == 0 ? 0 : 2;
  }
  return weft::bench::RunServe(serve);
}
