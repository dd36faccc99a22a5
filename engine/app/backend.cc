#include "engine/app/backend.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <stdexcept>

#include "engine/control/wire.h"

namespace weft {
namespace {

constexpr size_t kMostProblems = 8;  // told; a big job fails alike on many ranks

std::string Who(size_t rank, const RankFacts& facts) {
  std::string text = "rank " + std::to_string(rank) + " (host " + facts.host;
  if (facts.device.problem.empty() && facts.device.device >= 0) {
    text += ", GPU " + std::to_string(facts.device.device) + " " + facts.device.name;
  }
  return text + ")";
}

// Ranks that share a problem.
struct Problem {
  std::string what;
  std::string first;  // rank
  size_t ranks = 1;
};

// What stands against one rank a GPU.
std::vector<Problem> Problems(bool share, const std::vector<RankFacts>& facts) {
  std::vector<Problem> problems;
  std::map<std::string, size_t> first;  // rank on each GPU, by uuid
  std::map<std::string, size_t> told;   // problems by what they are
  for (size_t r = 0; r < facts.size(); ++r) {
    std::string what = facts[r].device.problem;
    if (what.empty()) {
      const auto [at, fresh] = first.emplace(facts[r].device.uuid, r);
      if (fresh || share) continue;
      what = "its GPU is taken by rank " + std::to_string(at->second) +
             " of this job (start fewer ranks, choose GPUs with --device, or say --share-device "
             "on, which is slow)";
    }
    const auto [at, fresh] = told.emplace(what, problems.size());
    if (fresh) {
      problems.push_back({what, Who(r, facts[r])});
    } else {
      ++problems[at->second].ranks;
    }
  }
  return problems;
}

std::string Join(const std::vector<Problem>& problems) {
  std::string text;
  for (size_t i = 0; i < std::min(problems.size(), kMostProblems); ++i) {
    const Problem& p = problems[i];
    text += (i == 0 ? "" : "; ") + p.first;
    if (p.ranks > 1) text += " and " + std::to_string(p.ranks - 1) + " more";
    text += ": " + p.what;
  }
  if (problems.size() > kMostProblems) {
    text += "; and " + std::to_string(problems.size() - kMostProblems) + " more problems";
  }
  return text;
}

std::string Exchange(const BackendDecision& decision, bool shared, size_t ranks) {
  if (ranks == 1) return "";
  if (!decision.staged) return ", NCCL between them";
  return shared ? ", ranks share GPUs and exchange through the host (slow)"
                : ", exchanged through the host (slow): this build has no NCCL";
}

}  // namespace

const char* Name(Backend backend) {
  return backend == Backend::kAuto ? "auto" : backend == Backend::kCpu ? "cpu" : "cuda";
}

Settings ToSettings(const RankFacts& facts) {
  const DeviceFacts& d = facts.device;
  return {{"host", facts.host},
          {"problem", d.problem},
          {"device", std::to_string(d.device)},
          {"name", d.name},
          {"uuid", d.uuid},
          {"free", std::to_string(d.free_bytes)},
          {"total", std::to_string(d.total_bytes)}};
}

RankFacts ToRankFacts(const Settings& settings) {
  std::map<std::string, std::string> values(settings.begin(), settings.end());
  for (const char* key : {"host", "problem", "device", "name", "uuid", "free", "total"}) {
    if (!values.contains(key)) {
      throw std::runtime_error(std::string("a rank's facts lack '") + key + "'");
    }
  }
  RankFacts facts;
  facts.host = values["host"];
  facts.device = {
      values["problem"], std::atoi(values["device"].c_str()), values["name"],
      values["uuid"],    std::atoll(values["free"].c_str()),  std::atoll(values["total"].c_str())};
  return facts;
}

BackendDecision DecideBackend(Backend wanted, bool share, bool nccl,
                              const std::vector<RankFacts>& facts) {
  BackendDecision decision;
  std::map<std::string, int32_t> on_gpu;
  for (size_t r = 0; r < facts.size(); ++r) {
    decision.ranks.push_back(Who(r, facts[r]));
    ++on_gpu[facts[r].device.uuid];
  }
  for (const RankFacts& f : facts) decision.sharing.push_back(on_gpu[f.device.uuid]);
  if (wanted == Backend::kCpu) {
    decision.reason = "backend cpu, as asked for";
    return decision;
  }
  const std::vector<Problem> problems = Problems(share, facts);
  if (!problems.empty()) {
    const std::string why = Join(problems);
    if (wanted == Backend::kCuda) throw std::invalid_argument("--backend cuda: " + why);
    decision.reason = "backend cpu: not every rank has a GPU of its own: " + why;
    return decision;
  }
  decision.cuda = true;
  const bool shared = on_gpu.size() < facts.size();
  decision.staged = facts.size() > 1 && (shared || !nccl);
  decision.reason = std::string("backend cuda") +
                    (wanted == Backend::kCuda ? ", as asked for" : ": every rank has a GPU") +
                    Exchange(decision, shared, facts.size());
  return decision;
}

std::string Encode(const BackendDecision& decision) {
  WireWriter writer;
  writer.Put(static_cast<uint8_t>(decision.cuda));
  writer.Put(static_cast<uint8_t>(decision.staged));
  writer.Put(decision.reason);
  writer.Put(decision.nccl_id);
  writer.Put(decision.sharing);
  writer.Put(static_cast<uint32_t>(decision.ranks.size()));
  for (const std::string& rank : decision.ranks) writer.Put(rank);
  return writer.Take();
}

BackendDecision DecodeDecision(const std::string& bytes) {
  WireReader reader(bytes);
  BackendDecision decision;
  uint8_t cuda, staged;
  uint32_t ranks;
  reader.Get(&cuda);
  reader.Get(&staged);
  reader.Get(&decision.reason);
  reader.Get(&decision.nccl_id);
  reader.Get(&decision.sharing);
  reader.Get(&ranks);
  decision.cuda = cuda != 0;
  decision.staged = staged != 0;
  for (uint32_t r = 0; r < ranks; ++r) reader.Get(&decision.ranks.emplace_back());
  reader.Finish();
  return decision;
}

}  // namespace weft
