// The command line that starts an engine, and what it needs found first.
#pragma once

#include <string>
#include <vector>

#include "server/config/options.h"

namespace weft::server {

// "mpirun [...] -n G weft-engine --model DIR --listen 127.0.0.1:PORT [...]". `mpirun` and
// `engine_binary` as found below.
std::vector<std::string> EngineCommand(const Options& options, const std::string& mpirun,
                                       const std::string& engine_binary, int port);

// "", or what is wrong with --hostfile: mpirun would say it in many lines, or not at all.
std::string HostFileMistake(const Options& options);

// Each returns "" with *error set to a sentence when there is no such program.
std::string FindMpirun(const Options& options, std::string* error);
std::string FindEngineBinary(const Options& options, std::string* error);

// A port of 127.0.0.1 that nobody listens on now; 0 with *error set when there is none.
int FindFreePort(std::string* error);

}  // namespace weft::server
