#include "engine/core/client_shares.h"

#include <algorithm>
#include <limits>

namespace weft {
namespace {

constexpr size_t kRemembered = 4096;  // clients; ids may be drawn anew for every request

}  // namespace

void ClientShares::Enter(const std::string& client) {
  if (requests_++ == 0) shares_.clear();  // nobody to be fair to
  double least = std::numeric_limits<double>::infinity();
  for (const auto& [name, share] : shares_) {
    if (share.requests > 0) least = std::min(least, share.served);
  }
  if (shares_.size() >= kRemembered) Forget(least);
  Share& share = shares_[client];
  if (share.requests++ == 0 && least < std::numeric_limits<double>::infinity()) {
    share.served = std::max(share.served, least);
  }
}

void ClientShares::Leave(const std::string& client) {
  --shares_.at(client).requests;
  --requests_;
}

// Those who would be lifted anyway; if there are none, all who are away.
void ClientShares::Forget(double least) {
  const auto away = [](const auto& item) { return item.second.requests == 0; };
  const size_t lifted = std::erase_if(
      shares_, [&](const auto& item) { return away(item) && item.second.served <= least; });
  if (lifted == 0) std::erase_if(shares_, away);
}

}  // namespace weft
