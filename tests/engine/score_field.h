// The selector alone, as threads, on made-up fields of scores.
#pragma once

#include <functional>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "engine/run/select.h"
#include "tests/engine/harness.h"

namespace weft::test {

inline constexpr int32_t kQueries = 12, kPage = 16, kDim = 16;
using Field = std::function<float(int32_t query, int32_t position)>;

struct Setting {
  int ranks;
  int32_t block;
  bool rotated;
  Exchange exchange;
  SelectionPlan plan;
  int32_t tokens;  // of the context; the last kQueries are the queries
  double audit = 0;
};

struct Answer {
  std::vector<std::vector<int32_t>> read;  // [queries], of all ranks together, ascending
  std::vector<char> certificate;           // [queries]
  SelectionFigures figures;
  int64_t rounds = 0;     // exchanges of the one layer
  bool ascending = true;  // every list
};

// Query t scores a position by dimension t of its key: relu(x) - relu(-x) = x.
struct Inputs {
  std::vector<float> q, w;
  Inputs() : q(kQueries * 2 * kDim, 0.0f) {
    for (int32_t t = 0; t < kQueries; ++t) {
      q[static_cast<size_t>((t * 2) * kDim + t)] = 1;
      q[static_cast<size_t>((t * 2 + 1) * kDim + t)] = -1;
      w.insert(w.end(), {1.0f, -1.0f});
    }
  }
};

inline std::vector<float> KeysOf(const Setting& setting, const Field& field, int rank,
                                 int32_t pages) {
  const Placement placement{setting.ranks, setting.block, setting.rotated};
  std::vector<float> keys(static_cast<size_t>((pages + 1) * kDim * kPage), 0.0f);
  for (int32_t position = 0; position < setting.tokens; ++position) {
    if (placement.Rank(position) != rank) continue;
    const int64_t slot = placement.Slot(position);
    for (int32_t t = 0; t < kQueries; ++t) {
      keys[static_cast<size_t>(((slot / kPage + 1) * kDim + t) * kPage + slot % kPage)] =
          field(t, position);
    }
  }
  return keys;
}

inline StepPlan PlanOf(const Setting& setting) {
  StepPlan plan;
  plan.tokens.assign(kQueries, 0);
  PlanRow row;
  row.slot = 0;
  row.start = setting.tokens - kQueries;
  row.count = kQueries;
  row.pages_count = setting.tokens / (kPage * setting.ranks) + 1;
  for (int32_t page = 1; page <= row.pages_count; ++page) plan.pages.push_back(page);
  row.selection = setting.plan;
  plan.rows.push_back(row);
  return plan;
}

inline Answer Ask(const Setting& setting, const Field& field) {
  static const ModelConfig tiny = LoadConfig(TinyModel());
  ModelConfig config = tiny;
  config.index_heads = 2;
  config.index_dim = kDim;
  const StepPlan plan = PlanOf(setting);
  const Inputs inputs;
  const auto comms = MakeThreadCommunicators(setting.ranks);
  Answer answer;
  answer.read.resize(kQueries);
  answer.certificate.resize(kQueries);
  std::mutex mutex;
  const auto run = [&](int rank) {
    Communicator* comm = comms[static_cast<size_t>(rank)].get();
    const Placement placement{setting.ranks, setting.block, setting.rotated};
    Batch batch = MakeBatch(plan, {SlotState{}}, config, placement, rank, kPage);
    std::vector<float> keys = KeysOf(setting, field, rank, plan.rows[0].pages_count);
    Hooks hooks;
    hooks.on_certificate = [&](const Where& where, bool held) {
      answer.certificate[static_cast<size_t>(where.position - plan.rows[0].start)] = held;
    };
    Selector selector(comm, CpuOps(DetectIsa()), {}, placement, config, setting.exchange,
                      setting.audit, hooks);
    selector.Begin(&batch);
    selector.Select(0, inputs.q.data(), inputs.w.data(), {keys.data(), DType::kF32, kPage, kDim});
    const int64_t rounds = comm->stats().calls;
    std::vector<RowResult> results(1);
    selector.Finish(&results);
    std::lock_guard lock(mutex);
    if (rank == 0) {
      answer.figures = results[0].figures;
      answer.rounds = rounds;
    }
    if (rank > 0 && setting.exchange == Exchange::kRows) return;
    for (int32_t t = 0; t < kQueries; ++t) {
      const int32_t* list = selector.selection().List(t);
      const int32_t* end = list + selector.selection().counts[static_cast<size_t>(t)];
      answer.ascending = answer.ascending && std::is_sorted(list, end);
      auto& read = answer.read[static_cast<size_t>(t)];
      read.insert(read.end(), list, end);
    }
  };
  std::vector<std::thread> threads;
  for (int rank = 1; rank < setting.ranks; ++rank) threads.emplace_back(run, rank);
  run(0);
  for (std::thread& thread : threads) thread.join();
  for (auto& read : answer.read) std::sort(read.begin(), read.end());
  return answer;
}

inline Field RandomField(std::mt19937* random, int kind, int32_t tokens) {
  std::vector<std::vector<float>> scores(kQueries);
  for (auto& row : scores) {
    const int32_t center = static_cast<int32_t>((*random)() % static_cast<unsigned>(tokens));
    const int32_t period = 2 + static_cast<int32_t>((*random)() % 7);
    for (int32_t i = 0; i < tokens; ++i) {
      float score = static_cast<float>((*random)() % 2000) - 1000;
      if (kind == 1) score = static_cast<float>((*random)() % 3);                 // ties
      if (kind == 2) score -= 100.0f * static_cast<float>(std::abs(i - center));  // cluster
      if (kind == 3 && i % period == 0) score += 4000;                            // period
      row.push_back(score);
    }
  }
  return [scores](int32_t t, int32_t i) {
    return scores[static_cast<size_t>(t)][static_cast<size_t>(i)];
  };
}

}  // namespace weft::test
