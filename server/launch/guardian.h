// A small process between us and mpirun, which ends mpirun and all ranks when we end, however that
// happens.
//
// PR_SET_PDEATHSIG on mpirun itself would not do: as the threads of a killed process end one by one
// the signal comes several times, and on the second SIGTERM mpirun leaves without its ranks.
#pragma once

#include <sys/types.h>

#include <vector>

namespace weft::server {

struct GuardianPlan {
  char* const* argv;  // what to run
  int life_fd;        // a pipe whose other end we hold: its closing says stop
  int error_fd;       // gets errno if argv cannot be run; closed without when it can
  int output_fd;      // where all it prints goes; negative: to our stderr
  int grace_ms;       // from SIGTERM to SIGKILL
};

// To be called in a fork of ours. Ends as argv's process does, by the same code or signal, with no
// descendant left.
[[noreturn]] void RunGuardian(const GuardianPlan& plan);

// Descendants of `root`, found in /proc, parents before children.
std::vector<pid_t> DescendantsOf(pid_t root);

}  // namespace weft::server
