#include "engine/app/check.h"

#include <algorithm>
#include <iostream>
#include <map>

#include "engine/app/load.h"
#include "engine/app/memory_plan.h"
#include "engine/model/checkpoint.h"
#include "engine/model/model_error.h"
#include "engine/model/shown.h"
#include "engine/model/weights.h"
#include "engine/run/caches.h"

namespace weft {
namespace {

constexpr size_t kMostProblems = 50;

void DescribeConfig(const ModelConfig& c, std::ostream& out) {
  const auto full = std::count(c.indexer_types.begin(), c.indexer_types.end(), IndexerType::kFull);
  const auto moe = std::count(c.is_moe.begin(), c.is_moe.end(), true);
  out << "config: " << c.model_type << ", " << c.layers << " layers (" << full
      << " with an indexer, " << c.layers - full << " that share its selection; " << moe
      << " with experts), hidden " << c.hidden << ", " << c.heads << " heads, "
      << c.n_routed_experts << " experts of which " << c.experts_per_tok << " a token in "
      << c.n_group << " groups, K " << c.index_topk << ", indexer RoPE "
      << (c.indexer_rope_interleave ? "interleaved" : "half-split") << ", RoPE theta "
      << c.rope_theta << (c.yarn ? " with YaRN" : "") << ", vocabulary " << c.vocab << "\n";
}

void DescribeTensors(const CheckpointFolder& folder, std::ostream& out) {
  std::map<std::string, int64_t> count, bytes;
  std::map<std::string, int> files;
  for (const auto& [name, tensor] : folder.tensors()) {
    const std::string dtype = ShownText(tensor.dtype_name);
    ++count[dtype];
    bytes[dtype] += static_cast<int64_t>(tensor.bytes);
    ++files[tensor.file->path()];
  }
  out << "tensors: " << folder.tensors().size() << " in " << files.size() << " files";
  for (const auto& [dtype, n] : count) {
    out << ", " << n << " " << dtype << " (" << bytes[dtype] << " bytes)";
  }
  out << "\n";
}

void DescribeUnused(const ModelConfig& c, const CheckpointFolder& folder, std::ostream& out) {
  const auto mtp = std::count_if(folder.tensors().begin(), folder.tensors().end(),
                                 [&c](const auto& entry) { return IsMtpTensor(c, entry.first); });
  if (mtp > 0) out << "not used: " << mtp << " tensors of MTP layers\n";
  if (!folder.unlisted().empty()) out << "note: " << UnlistedText(folder) << "\n";
}

// What a rank needs beside weights and cache.
void DescribeWorkspace(const EngineOptions& o, const ModelConfig& config, std::ostream& out) {
  const int32_t workers = ThreadsOf(o, o.check_ranks);
  out << "workspace: "
      << StepBytes(config, o.max_step_tokens, o.max_context, o.max_index_topk, o.check_ranks,
                   workers)
      << " bytes for steps of up to " << o.max_step_tokens << " tokens with K up to "
      << o.max_index_topk << ", on CPUs with " << workers << (workers == 1 ? " thread" : " threads")
      << " a rank" << (o.threads > 0 ? "" : ", as with all ranks on this machine (--threads)")
      << "\n";
}

bool Report(EngineOptions options, std::ostream& out) {
  const ModelConfig config = LoadConfig(options.check);
  DescribeConfig(config, out);
  const CheckpointFolder folder(options.check);
  DescribeTensors(folder, out);
  DescribeUnused(config, folder, out);
  const CacheOptions cache{options.kv_dtype, options.index_dtype, options.page_tokens, 1};
  const Partition partition = PartitionOf(options, config, options.check_ranks);
  out << "partition: " << Name(partition) << "\n";
  std::vector<std::string> problems;
  for (int rank = 0; rank < options.check_ranks; ++rank) {
    const WeightsReport report = CheckWeights(config, folder, rank, options.check_ranks, partition);
    out << "rank " << rank << " of " << options.check_ranks << ": " << report.bytes
        << " bytes of packed weights\n";
    if (rank == 0) problems = report.problems;  // every rank checks every tensor
  }
  try {
    ResolveForModel(config, &options);  // refuses what serving would
    DescribeWorkspace(options, config, out);
    out << "cache: " << Caches::BytesPerPage(config, cache) / options.page_tokens
        << " bytes a token (" << Name(options.kv_dtype) << " latents, " << Name(options.index_dtype)
        << " index keys), each token on one rank\n";
  } catch (const std::exception& error) {
    problems.push_back(error.what());
  }
  for (size_t i = 0; i < std::min(problems.size(), kMostProblems); ++i) {
    out << "wrong: " << problems[i] << "\n";
  }
  if (problems.size() > kMostProblems) {
    out << "wrong: and " << problems.size() - kMostProblems << " more\n";
  }
  if (problems.empty()) out << "nothing is wrong (of the data only norms and biases were read)\n";
  return problems.empty();
}

}  // namespace

bool ReportModel(const EngineOptions& options, std::ostream& out) {
  try {
    return Report(options, out);
  } catch (const std::exception& error) {
    out << "wrong: " << error.what() << "\n";
    return false;
  }
}

int CheckModel(const EngineOptions& options) { return ReportModel(options, std::cout) ? 0 : 1; }

}  // namespace weft
