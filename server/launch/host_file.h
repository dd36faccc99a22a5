// Open MPI's host file, as far as weft-server can tell what mpirun would say of it.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace weft::server {

struct HostLine {
  std::string host;          // without "user@"
  std::optional<int> slots;  // none: mpirun takes the host's cores, or one for each of its lines
  bool understood = true;    // no other setting, nor one without a number
};

// "HOST [slots=N] [max_slots=N]", or what else mpirun calls these; '#' begins a comment.
std::vector<HostLine> ParseHostFile(const std::string& text);

// "", or why so many ranks cannot run on these hosts with rank 0 on this machine.
std::string CheckHosts(const std::vector<HostLine>& lines, int ranks, bool oversubscribe);

// Whether a name or address of a host file means this machine.
bool IsThisMachine(const std::string& host);

}  // namespace weft::server
