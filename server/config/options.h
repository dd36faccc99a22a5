// What weft-server can be told on its command line or by WEFT_* variables; flags win.
#pragma once

#include <string>
#include <vector>

namespace weft::server {

// Options that are the engine's: checked here, so that a mistake shows before anything starts.
struct EngineFlag {
  std::string name;  // "--index-topk"
  std::string value;
};

struct Options {
  std::string model;
  int ranks = 1;
  std::string listen = "127.0.0.1:8730";
  std::vector<std::string> engines;  // HOST:PORT of engines started elsewhere; empty: launch one
  std::string engine_binary;         // empty: beside our own program
  std::string mpirun = "mpirun";
  std::string hostfile;
  std::vector<std::string> mpirun_args;
  std::vector<EngineFlag> engine_flags;  // only those that were given
  double drain_timeout_seconds = 30;
  double replay_timeout_seconds = 300;
  int most_deaths = 3;
  size_t stream_buffer = 64 << 10;  // bytes that may wait for one client
  double stall_timeout_seconds = 120;
  double keepalive_seconds = 60;
  std::string chat_encoding;  // empty: by the model folder
  std::string log_level = "info";
  std::string log_format = "text";
  bool print_config = false;
  std::string effective;  // all options as JSON, for --print-config
  std::string changed;    // "ranks=4, listen=...": what was given, by flag or environment
};

// Where parsing ended: options to run with, or text to print and the code to exit with (help,
// version, mistakes: 0, 0, 2).
struct ParseResult {
  bool run = false;
  Options options;
  int exit_code = 0;
  std::string message;
};

ParseResult ParseOptions(int argc, const char* const* argv);

}  // namespace weft::server
