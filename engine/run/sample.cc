#include "engine/run/sample.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

namespace weft {
namespace {

// Logits of as many queries at once (scoring a long prompt wants all of them).
constexpr int64_t kTileQueries = 64;

bool NeedsSlices(const SamplingParams& sampling) {
  return sampling.temperature > 0 && sampling.top_p < 1;
}

double Perturbed(float logit, const SamplingParams& sampling, int32_t output_index, int32_t token) {
  if (sampling.temperature <= 0) return logit;
  return static_cast<double>(logit) / sampling.temperature +
         GumbelNoise(sampling, output_index, token);
}

// log sum exp of tiles (maxima, sums of exp(x - max)), folded in ascending order.
double LogSumExp(const std::vector<std::pair<float, float>>& tiles) {
  float greatest = -std::numeric_limits<float>::infinity();
  for (const auto& [max, sum] : tiles) greatest = std::max(greatest, max);
  double total = 0;
  for (const auto& [max, sum] : tiles) {
    total += static_cast<double>(sum) * std::exp(static_cast<double>(max) - greatest);
  }
  return greatest + std::log(total);
}

int32_t TilesOf(int32_t count) { return (count + kVocabTile - 1) / kVocabTile; }

}  // namespace

double GumbelNoise(const SamplingParams& sampling, int32_t output_index, int32_t token) {
  if (sampling.temperature <= 0) return 0;
  return -std::log(-std::log(SampleUniform(sampling.seed, static_cast<uint64_t>(output_index),
                                           static_cast<uint32_t>(token))));
}

int32_t SampleFiltered(const float* logits, int32_t vocab, const SamplingParams& sampling,
                       int32_t output_index) {
  std::vector<int32_t> ids(static_cast<size_t>(vocab));
  std::iota(ids.begin(), ids.end(), 0);
  std::sort(ids.begin(), ids.end(), [logits](int32_t a, int32_t b) {
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
  });
  const auto weight = [&](int32_t id) {
    return std::exp((static_cast<double>(logits[id]) - logits[ids[0]]) / sampling.temperature);
  };
  double total = 0;
  for (int32_t id : ids) total += weight(id);
  double before = 0;
  double best = -std::numeric_limits<double>::infinity();
  int32_t token = ids[0];
  for (int32_t id : ids) {
    if (before >= sampling.top_p * total) break;
    before += weight(id);
    const double value = Perturbed(logits[id], sampling, output_index, id);
    if (value > best || (value == best && id < token)) {
      best = value;
      token = id;
    }
  }
  return token;
}

Sampler::Sampler(const ModelConfig& config, const ModelWeights& weights, Communicator* comm,
                 const Ops& ops, const Exec& exec, const Hooks& hooks)
    : config_(config), weights_(weights), comm_(comm), ops_(ops), exec_(exec), hooks_(hooks) {}

std::vector<Sampler::Query> Sampler::Collect(const Batch& batch,
                                             const std::vector<SlotState>& slots) const {
  std::vector<Query> queries;
  for (size_t r = 0; r < batch.plan->rows.size(); ++r) {
    const PlanRow& row = batch.plan->rows[r];
    for (int32_t i = row.logits_begin; i < row.count; ++i) {
      Query query;
      query.row = r;
      query.token = batch.row_begin[r] + i;
      if (row.targets_begin >= 0) {
        query.target =
            batch.plan->targets[static_cast<size_t>(row.targets_begin + i - row.logits_begin)];
      }
      query.sample = row.sample && i == row.count - 1;
      query.output_index = row.output_index == PlanRow::kFromSlot
                               ? slots[static_cast<size_t>(row.slot)].output_count
                               : row.output_index;
      if (query.sample || query.target >= 0 || hooks_.on_logits) queries.push_back(query);
    }
  }
  return queries;
}

std::vector<int32_t> Sampler::Run(const Batch& batch, const std::vector<SlotState>& slots,
                                  const float* hidden, std::vector<RowResult>* results) {
  std::vector<int32_t> tokens(batch.plan->rows.size(), -1);
  const std::vector<Query> queries = Collect(batch, slots);
  const auto total = static_cast<int64_t>(queries.size());
  for (int64_t begin = 0; begin < total; begin += kTileQueries) {
    RunTile(batch, queries.data() + begin, std::min(kTileQueries, total - begin), hidden, &tokens,
            results);
  }
  // All ranks folded the same numbers; still the choice is rank 0's, whatever their libm's last
  // bit.
  if (total > 0) comm_->Broadcast(tokens.data(), tokens.size() * sizeof(int32_t), 0);
  for (size_t r = 0; r < tokens.size(); ++r) (*results)[r].token = tokens[r];
  return tokens;
}

void Sampler::RunTile(const Batch& batch, const Query* queries, int64_t count, const float* hidden,
                      std::vector<int32_t>* tokens, std::vector<RowResult>* results) {
  const int64_t D = config_.hidden;
  const int32_t own = weights_.slices.vocab.count, ranks = comm_->size();
  std::vector<float> x(static_cast<size_t>(count * D));
  for (int64_t i = 0; i < count; ++i) {
    std::memcpy(x.data() + i * D, hidden + queries[i].token * D,
                static_cast<size_t>(D) * sizeof(float));
  }
  ops_.rms_norm({count, config_.hidden, x.data(), D, weights_.final_norm.data(),
                 static_cast<float>(config_.rms_norm_eps), x.data(), D},
                exec_);
  std::vector<float> logits(static_cast<size_t>(count * own));
  if (own > 0) ops_.linear({count, x.data(), D, weights_.lm_head, logits.data(), own}, exec_);

  // One block a rank: summaries of all queries, then tile maxima and sums of all queries, then
  // whole slices of the queries that filter.
  const std::vector<int32_t> vocab = CountsOf(config_.vocab, kVocabUnit, ranks);
  int64_t filtered = 0;
  for (int64_t i = 0; i < count; ++i) {
    const SamplingParams& sampling = batch.plan->rows[queries[i].row].sampling;
    filtered += queries[i].sample && NeedsSlices(sampling) ? 1 : 0;
  }
  const auto block_bytes = [&](int32_t slice) {
    return static_cast<size_t>(count) * sizeof(SliceSummary) +
           static_cast<size_t>(count * 2 * TilesOf(slice) + filtered * slice) * sizeof(float);
  };
  std::vector<size_t> bytes, at{0};
  for (int32_t slice : vocab) {
    bytes.push_back(block_bytes(slice));
    at.push_back(at.back() + bytes.back());
  }
  std::vector<char> all(at.back());
  char* block = all.data() + at[static_cast<size_t>(comm_->rank())];
  auto* tiles = reinterpret_cast<float*>(block + static_cast<size_t>(count) * sizeof(SliceSummary));
  float* slices = tiles + count * 2 * TilesOf(own);
  for (int64_t i = 0; i < count; ++i) {
    const float* own_logits = logits.data() + i * own;
    const Query& query = queries[i];
    const SliceSummary summary = Summarise(batch, query, own_logits);
    std::memcpy(block + static_cast<size_t>(i) * sizeof(summary), &summary, sizeof(summary));
    if (query.sample && NeedsSlices(batch.plan->rows[query.row].sampling)) {
      std::memcpy(slices, own_logits, static_cast<size_t>(own) * sizeof(float));
      slices += own;
    }
  }
  if (own > 0) {
    ops_.logit_tiles({count, own, logits.data(), own, tiles, tiles + count * TilesOf(own)}, exec_);
  }
  comm_->AllGather(block, all.data(), bytes);
  FoldTile(batch, queries, count, all, at, vocab, tokens, results);
}

SliceSummary Sampler::Summarise(const Batch& batch, const Query& query, const float* logits) const {
  const Slice slice = weights_.slices.vocab;
  const PlanRow& row = batch.plan->rows[query.row];
  if (hooks_.on_logits) {
    hooks_.on_logits(
        {config_.layers, row.sequence, batch.position[static_cast<size_t>(query.token)]}, logits,
        slice.begin, slice.count);
  }
  SliceSummary summary;
  const bool draw = query.sample && !NeedsSlices(row.sampling);
  for (int32_t i = 0; i < slice.count; ++i) {
    const int32_t id = slice.begin + i;
    if (summary.argmax < 0 || logits[i] > summary.max_logit) {
      summary.max_logit = logits[i];
      summary.argmax = id;
    }
    if (id == query.target) {
      summary.target_logit = logits[i];
      summary.has_target = 1;
    }
    if (!draw) continue;
    const double value = Perturbed(logits[i], row.sampling, query.output_index, id);
    if (summary.best_id < 0 || value > summary.best) {
      summary.best = value;
      summary.best_id = id;
    }
  }
  return summary;
}

void Sampler::FoldTile(const Batch& batch, const Query* queries, int64_t count,
                       const std::vector<char>& all, const std::vector<size_t>& at,
                       const std::vector<int32_t>& vocab, std::vector<int32_t>* tokens,
                       std::vector<RowResult>* results) const {
  const size_t ranks = vocab.size();
  int64_t filtered_before = 0;
  for (int64_t i = 0; i < count; ++i) {
    const Query& query = queries[i];
    const SamplingParams& sampling = batch.plan->rows[query.row].sampling;
    const bool filter = query.sample && NeedsSlices(sampling);
    SliceSummary folded;
    std::vector<std::pair<float, float>> tiles;
    std::vector<float> logits;
    for (size_t rank = 0; rank < ranks; ++rank) {
      const char* block = all.data() + at[rank];
      SliceSummary one;
      std::memcpy(&one, block + static_cast<size_t>(i) * sizeof(one), sizeof(one));
      // Ranks ascend with ids, so a strict comparison leaves ties with the smaller one.
      if (one.best_id >= 0 && (folded.best_id < 0 || one.best > folded.best)) {
        folded.best = one.best;
        folded.best_id = one.best_id;
      }
      if (one.argmax >= 0 && (folded.argmax < 0 || one.max_logit > folded.max_logit)) {
        folded.max_logit = one.max_logit;
        folded.argmax = one.argmax;
      }
      if (one.has_target) folded.target_logit = one.target_logit;
      const int32_t tile_count = TilesOf(vocab[rank]);
      const auto* floats =
          reinterpret_cast<const float*>(block + static_cast<size_t>(count) * sizeof(one));
      for (int32_t tile = 0; tile < tile_count; ++tile) {
        tiles.emplace_back(floats[i * tile_count + tile], floats[(count + i) * tile_count + tile]);
      }
      if (filter) {
        const float* slice = floats + 2 * count * tile_count + filtered_before * vocab[rank];
        logits.insert(logits.end(), slice, slice + vocab[rank]);
      }
    }
    if (query.sample) {
      (*tokens)[query.row] =
          filter ? SampleFiltered(logits.data(), config_.vocab, sampling, query.output_index)
                 : folded.best_id;
    }
    if (query.target >= 0) {
      RowResult& result = (*results)[query.row];
      result.logprobs.push_back(
          static_cast<float>(static_cast<double>(folded.target_logit) - LogSumExp(tiles)));
      result.argmax.push_back(folded.argmax);
    }
    filtered_before += filter ? 1 : 0;
  }
}

}  // namespace weft
