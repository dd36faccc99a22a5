// The hello of a worker and the address it starts from.
#pragma once

#include <string>

#include "engine/control/control.h"

namespace weft {

struct Hello {
  int32_t rank = 0;
  std::string token;
  Settings settings;  // must be equal on all ranks
  Settings facts;     // need not be
};

std::string EncodeHello(const Hello& hello);
Hello DecodeHello(const std::string& payload);  // throws std::runtime_error

// 128 random bits in hex.
std::string RandomToken();
// Takes the same time wherever the first difference is.
bool SameToken(const std::string& a, const std::string& b);

// "host:port token" and back. Throws ControlError.
struct Address {
  std::string host;
  std::string port;
  std::string token;
};
Address ParseAddress(const std::string& text);

// An address of this machine that others can reach: that of its host name, else of the first
// interface that is up, else loopback.
std::string ReachableHost();

}  // namespace weft
