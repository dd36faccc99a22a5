#include "server/launch/host_file.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <regex>
#include <set>
#include <sstream>
#include <thread>

namespace weft::server {
namespace {

// Of either family, for comparison.
std::string Address(const sockaddr* address) {
  if (address == nullptr) return "";
  if (address->sa_family == AF_INET) {
    const in_addr& v4 = reinterpret_cast<const sockaddr_in*>(address)->sin_addr;
    return {reinterpret_cast<const char*>(&v4), sizeof v4};
  }
  if (address->sa_family == AF_INET6) {
    const in6_addr& v6 = reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
    return {reinterpret_cast<const char*>(&v6), sizeof v6};
  }
  return "";
}

std::vector<std::string> AddressesOf(const std::string& host) {
  addrinfo* list = nullptr;
  if (getaddrinfo(host.c_str(), nullptr, nullptr, &list) != 0) return {};
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(list, freeaddrinfo);
  std::vector<std::string> addresses;
  for (; list != nullptr; list = list->ai_next) addresses.push_back(Address(list->ai_addr));
  return addresses;
}

std::vector<std::string> OwnAddresses() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return {};
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, freeifaddrs);
  std::vector<std::string> addresses;
  for (; list != nullptr; list = list->ifa_next) addresses.push_back(Address(list->ifa_addr));
  return addresses;
}

// Those that mpirun will find; the most that a host without a number may have.
int64_t Slots(const std::vector<HostLine>& lines) {
  std::map<std::string, int> times;
  for (const HostLine& line : lines) ++times[line.host];
  int64_t slots = 0;
  for (const HostLine& line : lines) {
    if (!line.understood) return std::numeric_limits<int64_t>::max();  // mpirun will say
    if (line.slots) {
      slots += *line.slots;
    } else if (times[line.host] > 1) {
      ++slots;
    } else if (IsThisMachine(line.host)) {
      slots += std::max(1U, std::thread::hardware_concurrency());
    } else {
      return std::numeric_limits<int64_t>::max();  // as many as it has cores
    }
  }
  return slots;
}

}  // namespace

std::vector<HostLine> ParseHostFile(const std::string& text) {
  static const std::regex equals("\\s*=\\s*"), setting("([^=]+)=(.*)"), number("[0-9]{1,9}");
  static const std::set<std::string> of_slots = {"slots", "count", "cpu"};
  static const std::set<std::string> of_most = {"max_slots", "max-slots", "slots_max",
                                                "slots-max", "count_max", "count-max"};
  std::vector<HostLine> lines;
  std::istringstream rows(text);
  for (std::string row; std::getline(rows, row);) {
    row.erase(std::min(row.find('#'), row.size()));
    row = std::regex_replace(row, equals, "=");
    std::istringstream words(row);
    HostLine line;
    if (!(words >> line.host)) continue;
    line.host.erase(0, line.host.find('@') + 1);
    std::optional<int> most;
    std::smatch match;
    for (std::string word; words >> word;) {
      if (!std::regex_match(word, match, setting)) continue;
      const bool known = of_slots.contains(match[1]) || of_most.contains(match[1]);
      if (!known || !std::regex_match(match[2].str(), number)) {
        line.understood = false;
        continue;
      }
      (of_slots.contains(match[1]) ? line.slots : most) = std::stoi(match[2]);
    }
    if (!line.slots) line.slots = most;  // as mpirun does
    lines.push_back(line);
  }
  return lines;
}

std::string CheckHosts(const std::vector<HostLine>& lines, int ranks, bool oversubscribe) {
  if (lines.empty()) return "names no host; it takes lines such as 'localhost slots=4'";
  if (!IsThisMachine(lines.front().host)) {
    return "its first line must be this machine, where rank 0 runs and weft-server connects to it; "
           "got '" +
           lines.front().host + "'";
  }
  for (const HostLine& line : lines) {
    const bool twice = std::any_of(lines.begin(), lines.end(), [&](const HostLine& other) {
      return &other != &line && other.host == line.host;
    });
    if (twice && line.slots) {
      return "names '" + line.host +
             "' more than once and its slots too, which mpirun refuses: one line a host, slots=N "
             "being its ranks";
    }
  }
  const int64_t slots = Slots(lines);
  if (oversubscribe || slots >= ranks) return "";
  return "has " + std::to_string(slots) + " slots for " + std::to_string(ranks) +
         " ranks: write slots=N behind each host, N being its ranks; or, to run more ranks than "
         "slots, give --mpirun-arg --oversubscribe";
}

bool IsThisMachine(const std::string& host) {
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  if (host == "localhost" || host == name) return true;
  const std::vector<std::string> own = OwnAddresses();
  for (const std::string& address : AddressesOf(host)) {
    const bool loopback = address.size() == 4 && address[0] == 127;
    if (loopback || (!address.empty() && std::count(own.begin(), own.end(), address) > 0)) {
      return true;
    }
  }
  return false;
}

}  // namespace weft::server
