// The command line of weft-bench serve.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

namespace weft::bench {

struct Range {
  int64_t low = 0;
  int64_t high = 0;  // included
};

struct ServeOptions {
  std::string target = "127.0.0.1:8730";
  double rate = 0;                      // requests a second; 0: closed loop
  std::vector<int> concurrency = {16};  // one run each
  int64_t requests = 64;                // of a run
  Range prompt_tokens = {256, 256};
  Range output_tokens = {64, 64};
  std::string prompts;  // file
  float temperature = 0;
  uint64_t seed = 1;
  int check = 2;
  double timeout = 600;  // seconds
  double slo_ttft = 0;   // ms; 0: none
  double slo_itl = 0;
  int priority = 0;
  std::string client_id;
  bool mixed = false;
  int64_t long_tokens = 30000;
  int64_t stream_tokens = 512;
  double calm = 10;  // seconds
  bool json = false;
  bool quiet = false;
};

// Adds the subcommand.
void AddServe(CLI::App* app, ServeOptions* options);
// What no single option can see, once `app` has parsed. Throws CLI::ValidationError.
void CheckServe(const CLI::App& app, const ServeOptions& options);

}  // namespace weft::bench
