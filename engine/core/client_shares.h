// How much each client was served, in tokens: who had least is next. Virtual token counters (Sheng
// et al., "Fairness in Serving Large Language Models"): a token of a prompt counts 1, one of an
// answer 2, and a client that comes back is lifted to the least of those that are there, so that
// nobody saves up a right to the machine by staying away.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>

namespace weft {

class ClientShares {
 public:
  static constexpr double kPromptToken = 1;
  static constexpr double kOutputToken = 2;

  // A request of the client arrives; it leaves when it has ended.
  void Enter(const std::string& client);
  void Leave(const std::string& client);

  void Charge(const std::string& client, double tokens) { shares_.at(client).served += tokens; }
  double Served(const std::string& client) const { return shares_.at(client).served; }
  size_t known() const { return shares_.size(); }

 private:
  struct Share {
    double served = 0;
    int64_t requests = 0;
  };
  void Forget(double least);

  std::unordered_map<std::string, Share> shares_;
  int64_t requests_ = 0;
};

}  // namespace weft
