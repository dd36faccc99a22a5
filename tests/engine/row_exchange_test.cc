// The `rows` exchange alone: rows that say whose they are are written by their owners and gathered
// back, for lengths that the number of ranks divides or not.
#include "engine/run/row_exchange.h"

#include <catch2/catch.hpp>
#include <thread>

#include "tests/engine/harness.h"

namespace weft::test {
namespace {

constexpr int32_t kPage = 16, kWidth = 16;

// Two sequences, from their beginning, on pages that alternate and descend.
StepPlan TwoSequences(int ranks, int32_t first, int32_t second) {
  StepPlan plan;
  int32_t page = 40;
  for (const int32_t count : {first, second}) {
    PlanRow row;
    row.slot = static_cast<int32_t>(plan.rows.size());
    row.count = count;
    row.tokens_begin = static_cast<int32_t>(plan.tokens.size());
    row.pages_begin = static_cast<int32_t>(plan.pages.size());
    row.pages_count = (count + kPage * ranks - 1) / (kPage * ranks);
    for (int32_t i = 0; i < row.pages_count; ++i) plan.pages.push_back(page -= 2);
    page = 39;
    plan.tokens.resize(plan.tokens.size() + static_cast<size_t>(count), 0);
    row.selection = {SelectionMode::kExact, 1 << 20, 1 << 20, 1};
    plan.rows.push_back(row);
  }
  return plan;
}

float Mark(const Batch& batch, int32_t token, int32_t position) {
  return static_cast<float>(1000 * (1 + batch.row_of[static_cast<size_t>(token)]) + position);
}

// A token reads itself and about a third of what it sees.
Selection SomeOf(const Batch& batch) {
  Selection selection;
  selection.stride = *std::max_element(batch.position.begin(), batch.position.end()) + 1;
  selection.positions.resize(static_cast<size_t>(batch.tokens * selection.stride));
  for (int32_t token = 0; token < batch.tokens; ++token) {
    int32_t count = 0;
    const int32_t own = batch.position[static_cast<size_t>(token)];
    for (int32_t p = 0; p <= own; ++p) {
      if (p == own || SplitMix64(static_cast<uint64_t>(token * 1000 + p)) % 3 == 0) {
        selection.List(token)[count++] = p;
      }
    }
    selection.counts.push_back(count);
  }
  return selection;
}

// What each token gets to read, in order.
std::vector<std::vector<float>> Read(const StepPlan& plan, const Placement& placement,
                                     Communicator* comm, int64_t workspace_bytes) {
  const Batch batch = MakeBatch(plan, std::vector<SlotState>(2), LoadConfig(TinyModel()), placement,
                                comm->rank(), kPage);
  std::vector<float> memory(41 * kPage * kWidth, -1.0f);
  const LatentCache cache{memory.data(), DType::kF32, kPage, kWidth, 0};
  std::vector<float> rows;
  for (const int32_t token : batch.owned) {
    rows.resize(rows.size() + kWidth,
                Mark(batch, token, batch.position[static_cast<size_t>(token)]));
  }
  const Ops& ops = CpuOps(DetectIsa());
  ops.write_latent({static_cast<int64_t>(batch.owned.size()), rows.data(), kWidth,
                    batch.owned_slots.data(), cache},
                   {});
  const Selection selection = SomeOf(batch);
  RowExchange exchange(comm, ops, {}, placement, workspace_bytes);
  exchange.Begin(batch, selection, cache);
  std::vector<std::vector<float>> read(static_cast<size_t>(batch.tokens));
  RowTile tile;
  while (exchange.Next(&tile)) {
    for (size_t token = 0; token < read.size(); ++token) {
      for (int32_t j = 0; j < tile.counts[token]; ++j) {
        const int32_t row =
            tile.lists[token * static_cast<size_t>(tile.stride) + static_cast<size_t>(j)];
        read[token].push_back(static_cast<const float*>(tile.rows)[row * kWidth + row % kWidth]);
      }
    }
  }
  return read;
}

}  // namespace

TEST_CASE("row exchange: what is gathered is what was asked for, on every rank") {
  const int ranks = GENERATE(1, 2, 3, 5);
  const int32_t block = GENERATE(1, 16);
  const int32_t more = GENERATE(0, 1, 2);
  const Placement placement{ranks, block, more != 1};
  const StepPlan plan = TwoSequences(ranks, 60 + more, 30 + 2 * more);
  const Batch batch =
      MakeBatch(plan, std::vector<SlotState>(2), LoadConfig(TinyModel()), placement, 0, kPage);
  const Selection selection = SomeOf(batch);
  for (const int64_t workspace_bytes : {int64_t{1}, int64_t{7 * kWidth * 4}, int64_t{1} << 20}) {
    CAPTURE(ranks, block, more, workspace_bytes);
    const auto comms = MakeThreadCommunicators(ranks);
    std::vector<std::vector<std::vector<float>>> read(static_cast<size_t>(ranks));
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < read.size(); ++rank) {
      threads.emplace_back(
          [&, rank] { read[rank] = Read(plan, placement, comms[rank].get(), workspace_bytes); });
    }
    for (std::thread& thread : threads) thread.join();
    for (int32_t token = 0; token < batch.tokens; ++token) {
      std::vector<float> want;
      for (int32_t j = 0; j < selection.counts[static_cast<size_t>(token)]; ++j) {
        want.push_back(Mark(batch, token, selection.List(token)[j]));
      }
      for (const auto& of_rank : read) REQUIRE(of_rank[static_cast<size_t>(token)] == want);
    }
  }
}

}  // namespace weft::test
