#include "server/config/engine_rules.h"

#include <cstring>
#include <stdexcept>

namespace weft::server {
namespace {

std::vector<EngineRule> SelectionRules() {
  return {
      {"--selection", "How attention selects: exact, interleaved, certified or dense",
       "interleaved", OneOf({"exact", "interleaved", "certified", "dense"})},
      {"--index-topk", "K, the tokens a query selects; 0: the model's own", "0",
       IntegerBetween(0, 1 << 20)},
      {"--max-index-topk",
       "The largest K that a request may ask for; 0: the greater of the model's and --index-topk",
       "0", IntegerBetween(0, 1 << 20)},
      {"--coverage",
       "gamma, the wanted probability that the union holds the exact top-K; by default 0.99, and "
       "0.99999 in certified mode",
       "", NumberAbove(0, 1, false)},
      {"--m-rule", "How m comes from K, G and gamma: exact or formula", "exact",
       OneOf({"exact", "formula"})},
      {"--margin", "m by layer: auto, from the loads that were seen (CPU backend alone), or off",
       "off", OneOf({"auto", "off"})},
      {"--placement", "Which rank holds a token: rotated or round-robin", "rotated",
       OneOf({"rotated", "round-robin"})},
      {"--block-size", "b, neighbouring tokens that stay on one rank", "1",
       IntegerBetween(1, 4096)},
  };
}

std::vector<EngineRule> SchedulerRules() {
  return {
      {"--max-step-tokens,--chunk", "Most tokens of one step, prefill chunks and decode together",
       "512", IntegerBetween(1, 65536)},
      {"--max-step-ratio",
       "Longest step while answers stream, over that of the answers alone; 0: no limit", "2",
       NumberAbove(0, 1e6, true)},
      {"--max-step-ms", "The same as a time, in ms; 0: no limit", "0", NumberAbove(0, 1e6, true)},
      {"--priority-aging", "Seconds of waiting that count as one priority more", "30",
       NumberAbove(1e-3, 1e6, true)},
      {"--prefix-cache", "Keep prompts' caches for prompts that begin alike: on or off", "on",
       OneOf({"on", "off"})},
      {"--max-waiting", "Requests that may wait in the engine", "1024", IntegerBetween(0, 1 << 30)},
      {"--max-waiting-per-client", "The same of one client_id; 0: no limit of its own", "0",
       IntegerBetween(0, 1 << 30)},
      {"--max-context", "Longest sequence, prompt and output together; 0: the model's", "0",
       IntegerBetween(0, 1 << 24)},
      {"--max-sequences", "Sequences that run at the same time", "64", IntegerBetween(1, 65536)},
  };
}

std::vector<EngineRule> MachineRules() {
  return {
      {"--kv-dtype", "Latent cache: bf16, fp32 or fp8", "bf16", OneOf({"bf16", "fp32", "fp8"})},
      {"--index-dtype", "Index keys: bf16, fp32 or fp8", "bf16", OneOf({"bf16", "fp32", "fp8"})},
      {"--kv-memory",
       "Memory for the caches of one rank, such as 8GiB; 0: room for four longest contexts within "
       "40 % of what is free",
       "0", MemorySize(0)},
      {"--threads", "Threads of one rank; 0: the cores over the ranks of the host", "0",
       IntegerBetween(0, 1024)},
      {"--backend", "Where the ranks compute: auto, cpu or cuda; auto takes GPUs if all have one",
       "auto", OneOf({"auto", "cpu", "cuda"})},
      {"--device", "GPUs of a host by the ranks on it, as 0,2; by default in their order", "",
       DeviceList()},
      {"--share-device", "Let several ranks use one GPU, slowly: on or off", "off",
       OneOf({"on", "off"})},
      {"--isa", "Instruction set of the CPU kernels: auto, scalar, avx2 or avx512", "auto",
       OneOf({"auto", "scalar", "avx2", "avx512"})},
      {"--exchange", "What travels to meet the other: rows or partial (queries)", "rows",
       OneOf({"rows", "partial"})},
      {"--peer-access",
       "Let the GPUs of a host read each other's memory in decode steps: on or off", "on",
       OneOf({"on", "off"})},
      {"--deterministic",
       "On GPUs, the same tokens in any batch and after a failure, slowly: on or off", "off",
       OneOf({"on", "off"})},
      {"--partition", "How ranks share weights: gather or reduce", "gather",
       OneOf({"gather", "reduce"})},
      {"--experts", "With --partition reduce, experts auto, split over the ranks or whole", "auto",
       OneOf({"auto", "split", "whole"})},
      {"--page-tokens", "P, tokens of a cache page on one rank, a multiple of 16 and of b", "64",
       MultipleBetween(16, 16, 4096)},
      {"--exchange-memory", "Workspace of the exchange per rank", "64MiB", MemorySize(1)},
      {"--startup-timeout", "Seconds the ranks wait for one another at start", "600",
       NumberAbove(0, 1e6, false)},
      {"--step-timeout", "Seconds a collective may take before the engine gives up", "300",
       NumberAbove(0, 1e6, false)},
  };
}

}  // namespace

std::string NameOf(const EngineRule& rule) {
  return std::string(rule.name, std::strcspn(rule.name, ","));
}

const std::vector<EngineRule>& EngineRules() {
  static const std::vector<EngineRule> all = [] {
    std::vector<EngineRule> rules = SelectionRules();
    for (const auto& more : {SchedulerRules(), MachineRules()}) {
      rules.insert(rules.end(), more.begin(), more.end());
    }
    return rules;
  }();
  return all;
}

const char* StandardOf(const std::string& name) {
  for (const EngineRule& rule : EngineRules()) {
    if (NameOf(rule) == name) return rule.standard;
  }
  throw std::out_of_range("there is no engine option " + name);
}

}  // namespace weft::server
