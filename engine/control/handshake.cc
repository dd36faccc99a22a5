#include "engine/control/handshake.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "engine/control/wire.h"

namespace weft {
namespace {

bool IsLoopback(const sockaddr_in& address) {
  return (ntohl(address.sin_addr.s_addr) >> 24) == 127;
}

std::string Text(const sockaddr_in& address) {
  char text[INET_ADDRSTRLEN] = "";
  inet_ntop(AF_INET, &address.sin_addr, text, sizeof(text));
  return text;
}

std::string HostNameAddress() {
  char name[256] = "";
  if (gethostname(name, sizeof(name) - 1) != 0) return "";
  addrinfo hints{};
  hints.ai_family = AF_INET;
  addrinfo* list = nullptr;
  if (getaddrinfo(name, nullptr, &hints, &list) != 0) return "";
  std::string found;
  for (addrinfo* a = list; a != nullptr && found.empty(); a = a->ai_next) {
    const auto& address = *reinterpret_cast<const sockaddr_in*>(a->ai_addr);
    if (!IsLoopback(address)) found = Text(address);
  }
  freeaddrinfo(list);
  return found;
}

std::string FirstInterfaceAddress() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return "";
  std::string found;
  for (ifaddrs* i = list; i != nullptr && found.empty(); i = i->ifa_next) {
    if (i->ifa_addr == nullptr || i->ifa_addr->sa_family != AF_INET) continue;
    if ((i->ifa_flags & IFF_UP) == 0 || (i->ifa_flags & IFF_LOOPBACK) != 0) continue;
    found = Text(*reinterpret_cast<const sockaddr_in*>(i->ifa_addr));
  }
  freeifaddrs(list);
  return found;
}

}  // namespace

std::string Disagreement(const Settings& rank0, const Settings& other, int other_rank) {
  const std::string who = "rank " + std::to_string(other_rank);
  const size_t shared = std::min(rank0.size(), other.size());
  for (size_t i = 0; i < shared; ++i) {
    const auto& [key, value] = rank0[i];
    if (other[i].first != key) {
      return "ranks compare different settings: rank 0 has '" + key + "' where " + who + " has '" +
             other[i].first + "'";
    }
    if (other[i].second != value) {
      return "ranks disagree on " + key + ": rank 0 has '" + value + "', " + who + " has '" +
             other[i].second + "'";
    }
  }
  if (rank0.size() > shared) {
    return "ranks disagree on " + rank0[shared].first + ": rank 0 has '" + rank0[shared].second +
           "', " + who + " has none";
  }
  if (other.size() > shared) {
    return "ranks disagree on " + other[shared].first + ": rank 0 has none, " + who + " has '" +
           other[shared].second + "'";
  }
  return "";
}

std::string EncodeHello(const Hello& hello) {
  WireWriter writer;
  writer.Put(hello.rank);
  writer.Put(hello.token);
  for (const Settings* pairs : {&hello.settings, &hello.facts}) {
    writer.Put(static_cast<uint32_t>(pairs->size()));
    for (const auto& [key, value] : *pairs) {
      writer.Put(key);
      writer.Put(value);
    }
  }
  return writer.Take();
}

Hello DecodeHello(const std::string& payload) {
  WireReader reader(payload);
  Hello hello;
  reader.Get(&hello.rank);
  reader.Get(&hello.token);
  for (Settings* pairs : {&hello.settings, &hello.facts}) {
    uint32_t count;
    reader.Get(&count);
    for (uint32_t i = 0; i < count; ++i) {  // ends by itself: a false count runs out of bytes
      auto& [key, value] = pairs->emplace_back();
      reader.Get(&key);
      reader.Get(&value);
    }
  }
  reader.Finish();
  return hello;
}

std::string RandomToken() {
  unsigned char bits[16];
  std::ifstream random("/dev/urandom", std::ios::binary);
  if (!random.read(reinterpret_cast<char*>(bits), sizeof(bits))) {
    throw ControlError("cannot read /dev/urandom for the control token");
  }
  std::string token;
  for (const unsigned char b : bits) {
    token += "0123456789abcdef"[b >> 4];
    token += "0123456789abcdef"[b & 15];
  }
  return token;
}

bool SameToken(const std::string& a, const std::string& b) {
  if (a.size() != b.size()) return false;
  unsigned char difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference |= static_cast<unsigned char>(a[i] ^ b[i]);
  return difference == 0;
}

Address ParseAddress(const std::string& text) {
  const size_t space = text.find(' ');
  const size_t colon = text.substr(0, space).rfind(':');
  if (space == std::string::npos || colon == std::string::npos || colon == 0 ||
      colon + 1 == space || space + 1 == text.size()) {
    throw ControlError("a control address reads 'host:port token', got '" + text.substr(0, space) +
                       "'");  // never shows the token
  }
  return {text.substr(0, colon), text.substr(colon + 1, space - colon - 1), text.substr(space + 1)};
}

std::string ReachableHost() {
  std::string host = HostNameAddress();
  if (host.empty()) host = FirstInterfaceAddress();
  return host.empty() ? "127.0.0.1" : host;
}

}  // namespace weft
