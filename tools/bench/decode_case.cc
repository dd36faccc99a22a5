#include "tools/bench/decode_case.h"

#include "tools/bench/device_fill.h"

namespace weft::bench {
namespace {

int64_t PagesOfSequence(int64_t tokens, int ranks) {
  const int64_t per_page = int64_t{kPageTokens} * ranks;
  return (tokens + per_page - 1) / per_page;
}

StepPlan PlanOf(const ModelConfig& config, const DecodeShape& shape, int ranks) {
  StepPlan plan;
  plan.epoch = 1;
  const int64_t pages = PagesOfSequence(shape.tokens, ranks);
  const double gamma = shape.mode == SelectionMode::kCertified ? 0.99999 : 0.99;
  for (int32_t r = 0; r < shape.batch; ++r) {
    PlanRow row;
    row.sequence = r;
    row.slot = r;
    row.start = static_cast<int32_t>(shape.tokens - 1);
    row.count = 1;
    row.tokens_begin = r;
    row.pages_begin = static_cast<int32_t>(r * pages);
    row.pages_count = static_cast<int32_t>(pages);
    row.sample = true;
    row.selection = SelectionPlan::Make(shape.mode, config.index_topk, ranks, gamma);
    plan.rows.push_back(row);
    plan.tokens.push_back((r * 37 + 11) % config.vocab);
    for (int64_t p = 0; p < pages; ++p) {
      plan.pages.push_back(static_cast<int32_t>(1 + r * pages + p));
    }
  }
  return plan;
}

}  // namespace

int64_t PagesFor(int64_t tokens, int32_t batch, int ranks) {
  return 1 + batch * PagesOfSequence(tokens, ranks);
}

DecodeCase::DecodeCase(const ModelConfig& config, const Placement& placement, Rank* rank,
                       const DecodeShape& shape)
    : plan_(PlanOf(config, shape, placement.ranks)) {
  const std::vector<SlotState> slots(static_cast<size_t>(shape.batch));
  batch_ = MakeBatch(plan_, slots, config, placement, rank->rank, kPageTokens);
  GraphShape graph;
  if (!ShapeOf(batch_, config, placement, shape.batch, &graph)) {
    throw std::logic_error("a decode step of the bench does not fit a graph");
  }
  MakeDeviceBatch(batch_, config, placement, rank->rank, kPageTokens, &graph, &inputs_,
                  rank->context->stream(), &device_);
  score_stride_ = (graph.visible + 15) / 16 * 16;
}

void FillCaches(const ModelConfig& config, const Placement& placement, Rank* rank,
                const DecodeShape& shape, const CudaCaches& caches) {
  const int64_t pages = PagesOfSequence(shape.tokens, placement.ranks);
  for (int layer = 0; layer < config.layers; ++layer) {
    for (int32_t r = 0; r < shape.batch; ++r) {
      SequenceRows rows{placement, rank->rank, shape.tokens, 1 + r * pages,
                        static_cast<uint64_t>(layer * 1000 + r)};
      FillLatents(rows, caches.latent(layer), rank->context->stream());
      rows.seed += 500000;
      FillIndexKeys(rows, caches.index(layer), rank->context->stream());
    }
  }
}

}  // namespace weft::bench
