// What the options come to once the model is known, and what all ranks must have alike.
#include <algorithm>
#include <stdexcept>

#include "engine/app/capture_options.h"
#include "engine/app/options.h"
#include "engine/model/shards.h"

namespace weft {

Settings SettingsOf(const EngineOptions& o, const std::string& fingerprint) {
  return {{"version", WEFT_VERSION},
          {"model", fingerprint},
          {"selection", Name(o.selection)},
          {"index_topk", std::to_string(o.index_topk)},
          {"max_index_topk", std::to_string(o.max_index_topk)},
          {"coverage", std::to_string(o.coverage)},
          {"m_rule", o.m_rule == MRule::kFormula ? "formula" : "exact"},
          {"margin", o.margin_auto ? "auto" : "off"},
          {"audit", std::to_string(o.audit)},
          {"capture", o.capture.summary},
          {"placement", o.rotated ? "rotated" : "round-robin"},
          {"block_size", std::to_string(o.block_size)},
          {"partition", o.reduce ? "reduce" : "gather"},
          {"experts", std::to_string(static_cast<int>(o.experts))},
          {"kv_dtype", Name(o.kv_dtype)},
          {"index_dtype", Name(o.index_dtype)},
          {"page_tokens", std::to_string(o.page_tokens)},
          {"backend", Name(o.backend)},
          {"peer_access", o.peer_access ? "on" : "off"},
          {"deterministic", o.deterministic ? "on" : "off"},
          {"exchange", Name(o.exchange)},
          {"exchange_memory", std::to_string(o.exchange_memory)},
          {"max_step_tokens", std::to_string(o.max_step_tokens)},
          {"max_context", std::to_string(o.max_context)},
          {"max_sequences", std::to_string(o.max_sequences)}};
}

Partition PartitionOf(const EngineOptions& o, const ModelConfig& config, int ranks) {
  if (!o.reduce) return Partition::kGather;
  if (o.experts == ExpertSharing::kAuto) return DefaultReduce(config, ranks);
  return o.experts == ExpertSharing::kSplit ? Partition::kReduceSplit : Partition::kReduceWhole;
}

namespace {

void ResolveTopK(const ModelConfig& config, EngineOptions* o) {
  const bool models = o->index_topk == 0;
  if (models) o->index_topk = config.index_topk;
  if (o->max_index_topk == 0) o->max_index_topk = std::max(o->index_topk, config.index_topk);
  if (o->index_topk > o->max_index_topk) {
    throw std::invalid_argument(
        "--index-topk (" + std::to_string(o->index_topk) + (models ? ", the model's" : "") +
        ") must not exceed --max-index-topk (" + std::to_string(o->max_index_topk) + ")");
  }
}

}  // namespace

void ResolveForModel(const ModelConfig& config, EngineOptions* o) {
  CheckCacheTypes(config, o->kv_dtype, o->index_dtype);
  CheckCapture(config, o->capture);
  ResolveTopK(config, o);
  if (o->max_context == 0) o->max_context = config.max_positions;
  if (o->max_context > config.max_positions) {
    throw std::invalid_argument("--max-context (" + std::to_string(o->max_context) +
                                ") must not exceed the model's " +
                                std::to_string(config.max_positions));
  }
  if (o->page_tokens % o->block_size != 0) {
    throw std::invalid_argument("--page-tokens (" + std::to_string(o->page_tokens) +
                                ") must be a multiple of --block-size (" +
                                std::to_string(o->block_size) + ")");
  }
}

}  // namespace weft
