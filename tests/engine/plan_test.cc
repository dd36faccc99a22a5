// The step plan on the wire, and what a rank makes of it: references to slot state, the order of
// steps, padding rows.
#include <catch2/catch.hpp>

#include "engine/plan/step_plan.h"
#include "tests/engine/harness.h"

namespace weft::test {
namespace {

// No field as it is by default.
SamplingParams FullSampling() {
  SamplingParams sampling{0.7f, 0.9f, 0xFEDCBA9876543210ull, 40, 0.05f, 1.1f, 0.5f, -0.25f, 9, 20};
  sampling.logit_bias = {{3, -1.5f}, {200, 100.0f}};
  sampling.stop_ids = {1, 7};
  return sampling;
}

StepPlan FullPlan() {
  StepPlan plan;
  plan.epoch = 42;
  plan.predecessor = 41;
  plan.tokens = {5, 6, 7, 8};
  plan.targets = {6, -1};
  plan.pages = {1, 2, 9};
  plan.copies = {{4, 9}, {7, 3}};
  plan.history = {11, 12, 13};
  plan.masks = {0xF0F0F0F0u, 1};
  plan.traced = {{int64_t{1} << 33, 1000, 60}};
  PlanRow row;
  row.sequence = int64_t{1} << 40;
  row.slot = 3;
  row.start = 17;
  row.count = 3;
  row.tokens_begin = 0;
  row.pages_begin = 0;
  row.pages_count = 2;
  row.logits_begin = 1;
  row.targets_begin = 0;
  row.sample = true;
  row.output_index = 12;
  row.prefill = true;
  row.figures_begin = 2;
  row.keep_hidden = true;
  row.selection = {SelectionMode::kInterleaved, 256, 84, 0.97};
  row.sampling = FullSampling();
  row.history_begin = 1;
  row.history_count = 2;
  row.prompt_tokens = 18;
  row.target_alternatives = 5;
  row.mask_begin = 1;
  plan.rows.push_back(row);
  PlanRow decode;
  decode.slot = 1;
  decode.start = PlanRow::kFromSlot;
  decode.count = 1;
  decode.tokens_begin = 3;
  decode.pages_begin = 2;
  decode.pages_count = 1;
  decode.output_index = PlanRow::kFromSlot;
  plan.rows.push_back(decode);
  return plan;
}

// One decode step of the sequence in slot 0, spelled out or by reference.
StepPlan DecodeStep(const Cluster& cluster, const StepPlan& prompt, int32_t start, int32_t token,
                    int32_t output_index) {
  StepPlan plan = prompt;
  plan.predecessor = cluster.committed();
  plan.epoch = plan.predecessor + 1;
  plan.tokens = {token};
  PlanRow& row = plan.rows.front();
  row.start = start;
  row.count = 1;
  row.output_index = output_index;
  row.logits_begin = 0;
  row.pages_count = static_cast<int32_t>(plan.pages.size());
  return plan;
}

}  // namespace

TEST_CASE("step plan: every field survives the wire") {
  const StepPlan got = ParsePlan(SerializePlan(FullPlan()));
  CHECK(got.epoch == 42);
  CHECK(got.predecessor == 41);
  CHECK(got.tokens == std::vector<int32_t>{5, 6, 7, 8});
  CHECK(got.targets == std::vector<int32_t>{6, -1});
  CHECK(got.pages == std::vector<int32_t>{1, 2, 9});
  REQUIRE(got.copies.size() == 2);
  CHECK(got.copies[0].from == 4);
  CHECK(got.copies[0].to == 9);
  CHECK(got.copies[1].from == 7);
  CHECK(got.copies[1].to == 3);
  REQUIRE(got.traced.size() == 1);
  CHECK(got.traced[0].sequence == int64_t{1} << 33);
  CHECK(got.traced[0].position == 1000);
  CHECK(got.traced[0].layer == 60);
  REQUIRE(got.rows.size() == 2);
  const PlanRow& row = got.rows[0];
  CHECK(row.sequence == int64_t{1} << 40);
  CHECK(row.slot == 3);
  CHECK(row.start == 17);
  CHECK(row.count == 3);
  CHECK(row.tokens_begin == 0);
  CHECK(row.pages_begin == 0);
  CHECK(row.pages_count == 2);
  CHECK(row.logits_begin == 1);
  CHECK(row.targets_begin == 0);
  CHECK(row.sample);
  CHECK(row.output_index == 12);
  CHECK(row.prefill);
  CHECK(row.figures_begin == 2);
  CHECK(row.keep_hidden);
  CHECK(row.selection.mode == SelectionMode::kInterleaved);
  CHECK(row.selection.topk == 256);
  CHECK(row.selection.m == 84);
  CHECK(row.selection.gamma == 0.97);
  CHECK(row.sampling == FullSampling());
  CHECK(row.history_begin == 1);
  CHECK(row.history_count == 2);
  CHECK(row.prompt_tokens == 18);
  CHECK(row.target_alternatives == 5);
  CHECK(row.mask_begin == 1);
  CHECK(got.history == std::vector<int32_t>{11, 12, 13});
  CHECK(got.masks == std::vector<uint32_t>{0xF0F0F0F0u, 1});
  const PlanRow& decode = got.rows[1];
  CHECK(decode.slot == 1);
  CHECK(decode.start == PlanRow::kFromSlot);
  CHECK(decode.output_index == PlanRow::kFromSlot);
  CHECK(decode.tokens_begin == 3);
  CHECK(decode.pages_begin == 2);
  CHECK(decode.targets_begin == -1);
  CHECK_FALSE(decode.sample);
  CHECK(got.TokenCount() == 4);
}

TEST_CASE("step plan: a frame cut anywhere, or too long, is refused") {
  const std::string bytes = SerializePlan(FullPlan());
  for (size_t size = 0; size < bytes.size(); ++size) {
    CAPTURE(size);
    REQUIRE_THROWS_AS(ParsePlan(bytes.substr(0, size)), std::runtime_error);
  }
  CHECK_THROWS_WITH(ParsePlan(bytes + '\0'), "frame has bytes left over");
}

TEST_CASE("step plan: rows that point outside are refused") {
  const std::vector<std::function<void(PlanRow*)>> spoil = {
      [](PlanRow* row) { row->count = 5; },
      [](PlanRow* row) { row->count = -1; },
      [](PlanRow* row) { row->tokens_begin = 2; },
      [](PlanRow* row) { row->tokens_begin = -1; },
      [](PlanRow* row) { row->tokens_begin = INT32_MAX; },
      [](PlanRow* row) { row->pages_begin = 2; },
      [](PlanRow* row) { row->pages_begin = -1; },
      [](PlanRow* row) { row->pages_count = 4; },
      [](PlanRow* row) { row->pages_count = -1; },
      [](PlanRow* row) { row->logits_begin = 4; },
      [](PlanRow* row) { row->logits_begin = -1; },
      [](PlanRow* row) { row->logits_begin = 0; },  // three targets, but two are there
      [](PlanRow* row) { row->targets_begin = 1; },
      [](PlanRow* row) { row->history_begin = -1; },
      [](PlanRow* row) { row->history_count = 3; },
      [](PlanRow* row) { row->mask_begin = 2; },
  };
  for (size_t i = 0; i < spoil.size(); ++i) {
    CAPTURE(i);
    StepPlan plan = FullPlan();
    spoil[i](&plan.rows.front());
    CHECK_THROWS_WITH(ParsePlan(SerializePlan(plan)),
                      "step plan: a row points outside the plan's arrays");
  }
}

TEST_CASE("step plan: an unknown selection mode is refused") {
  StepPlan plan = FullPlan();
  plan.rows.front().selection.mode = static_cast<SelectionMode>(4);
  CHECK_THROWS_WITH(ParsePlan(SerializePlan(plan)), "step plan: selection mode 4 is unknown");
}

TEST_CASE("runner: references to slot state mean what absolute values mean") {
  const int ranks = GENERATE(1, 3);
  std::vector<LogitsTap::Rows> logits;
  std::vector<std::vector<int32_t>> tokens;
  for (const bool reference : {false, true}) {
    Cluster cluster({TinyModel(), ranks});
    LogitsTap tap(&cluster);
    StepPlan prompt = WholePrompt(cluster, Document(30), Exact(cluster));
    for (int32_t& id : prompt.tokens) id %= 256;
    prompt.pages.push_back(7);  // room for the output
    prompt.rows[0].pages_count++;
    prompt.rows[0].sample = true;
    prompt.rows[0].sampling = {1.0f, 1.0f, 99};  // so that output_index matters
    prompt.rows[0].output_index = 5;             // as after a replay
    std::vector<int32_t> sampled{cluster.RunStep(prompt).rows[0].token};
    for (int32_t i = 0; i < 4; ++i) {
      const StepPlan step = reference ? DecodeStep(cluster, prompt, PlanRow::kFromSlot,
                                                   PlanRow::kLastSampled, PlanRow::kFromSlot)
                                      : DecodeStep(cluster, prompt, 30 + i, sampled.back(), 6 + i);
      sampled.push_back(cluster.RunStep(step).rows[0].token);
    }
    logits.push_back(tap.Take());
    tokens.push_back(sampled);
  }
  CHECK(logits[0].size() == 34);
  CHECK(BitsDiffer(logits[1], logits[0]) == "");
  CHECK(tokens[1] == tokens[0]);
}

TEST_CASE("runner: a step that does not follow the committed one is refused, and changes nothing") {
  Cluster cluster({TinyModel()});
  const std::vector<int32_t> ids(20, 3);
  StepPlan plan = WholePrompt(cluster, ids, Exact(cluster));
  plan.epoch = 8;
  plan.predecessor = 7;
  CHECK_THROWS_WITH(cluster.RunStep(plan), "step 8 follows step 7, but step 0 was committed last");
  cluster.RunStep(WholePrompt(cluster, ids, Exact(cluster)));  // 0 -> 1
  CHECK_THROWS_WITH(cluster.RunStep([&] {
    StepPlan twice = WholePrompt(cluster, ids, Exact(cluster));
    twice.predecessor = 0;
    twice.epoch = 1;
    return twice;
  }()),
                    "step 1 follows step 0, but step 1 was committed last");
}

TEST_CASE("runner: a page holds whole groups of 16 tokens and whole placement blocks") {
  const auto make = [](int32_t page_tokens, int32_t block) {
    ClusterOptions options{TinyModel(), 2, block};
    options.page_tokens = page_tokens;
    Cluster cluster(options);
  };
  CHECK_THROWS_WITH(make(24, 1),
                    "page tokens (24) must be a multiple of 16 and of the placement block (1)");
  CHECK_THROWS_WITH(make(32, 3),
                    "page tokens (32) must be a multiple of 16 and of the placement block (3)");
  CHECK_NOTHROW(make(48, 3));
}

TEST_CASE("runner: rows without tokens or pages are refused") {
  const int32_t count = GENERATE(0, 33);
  Cluster cluster({TinyModel()});
  StepPlan plan = WholePrompt(cluster, std::vector<int32_t>(33, 3), Exact(cluster));
  plan.rows[0].count = plan.rows[0].logits_begin = count;
  plan.rows[0].pages_count = 2;  // 32 positions
  CHECK_THROWS_AS(cluster.RunStep(plan), std::runtime_error);
}

TEST_CASE("runner: padding rows change nothing") {
  const int ranks = GENERATE(1, 4);
  CAPTURE(ranks);
  Cluster cluster({TinyModel(), ranks});
  std::vector<int32_t> ids(40);
  for (int32_t i = 0; i < 40; ++i) ids[static_cast<size_t>(i)] = i * 7 % 256;
  LogitsTap tap(&cluster);
  StepPlan plan = WholePrompt(cluster, ids, Exact(cluster));
  plan.rows[0].sample = true;
  const StepResult want = cluster.RunStep(plan);
  const LogitsTap::Rows logits = tap.Take();
  REQUIRE(logits.size() == 40);

  StepPlan padded = WholePrompt(cluster, ids, Exact(cluster));
  padded.rows[0].sample = true;
  PlanRow padding;
  padding.slot = -1;
  padding.sequence = -1;
  padding.count = padding.logits_begin = 1;
  padding.tokens_begin = static_cast<int32_t>(padded.tokens.size());
  padding.pages_begin = static_cast<int32_t>(padded.pages.size());
  padding.pages_count = 1;
  padding.selection = padded.rows[0].selection;
  padded.tokens.push_back(0);
  padded.pages.push_back(0);
  padded.rows.insert(padded.rows.begin(), padding);
  padded.rows.push_back(padding);
  const StepResult got = cluster.RunStep(padded);
  CHECK(BitsDiffer(tap.Take(), logits) == "");
  CHECK(got.rows[1].token == want.rows[0].token);
  CHECK(got.rows[0].token == -1);
  CHECK(got.rows[2].token == -1);
}

}  // namespace weft::test
