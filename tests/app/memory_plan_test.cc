#include "engine/app/memory_plan.h"

#include <catch2/catch.hpp>

using Catch::Matchers::Contains;
using weft::MemoryPlan;
using weft::MemoryRequest;
using weft::PlanMemory;

namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

MemoryRequest Request() {
  MemoryRequest request;
  request.where = "GPU 0 NVIDIA H200";
  request.available = 100 * kGiB;
  request.weights = 40 * kGiB;
  request.workspace = 4 * kGiB;
  request.exchange = kGiB;
  request.libraries = kGiB;
  request.page_bytes = kGiB / 16;
  request.page_tokens = 64;
  request.ranks = 2;
  request.tokens_per_step = 512;
  return request;
}

// DeepSeek-V3.2's widths.
weft::ModelConfig Large() {
  weft::ModelConfig c;
  c.vocab = 129280;
  c.hidden = 7168;
  c.layers = 61;
  c.heads = 128;
  c.q_lora = 1536;
  c.kv_lora = 512;
  c.qk_nope = 128;
  c.qk_rope = 64;
  c.v_head = 128;
  c.intermediate = 18432;
  c.moe_intermediate = 2048;
  c.n_routed_experts = 256;
  c.n_shared_experts = 1;
  c.experts_per_tok = 8;
  c.index_heads = 64;
  c.index_dim = 128;
  c.index_topk = 2048;
  return c;
}

}  // namespace

TEST_CASE("the cache takes what weights and workspaces leave") {
  const MemoryPlan plan = PlanMemory(Request());
  CHECK(plan.pages == 54 * 16);
  CHECK(plan.cache == 54 * kGiB);
  CHECK(plan.used == 100 * kGiB);
  CHECK(plan.left == 0);
}

TEST_CASE("a share or a limit or --kv-memory takes less") {
  MemoryRequest request = Request();
  request.share = 0.5;
  CHECK(PlanMemory(request).pages == 27 * 16);
  request.most_pages = 33;
  CHECK(PlanMemory(request).pages == 33);
  CHECK(PlanMemory(request).left == 54 * kGiB - 33 * kGiB / 16);
  request.kv_memory = 10 * kGiB + 5;
  CHECK(PlanMemory(request).pages == 160);
  CHECK(PlanMemory(request).cache == 10 * kGiB);
}

TEST_CASE("what does not fit is refused with the numbers") {
  MemoryRequest request = Request();
  request.kv_memory = 55 * kGiB;
  CHECK_THROWS_WITH(PlanMemory(request),
                    Contains("does not fit into the 100.00 GiB that a rank may use of GPU 0 NVIDIA "
                             "H200") &&
                        Contains("weights 40.00 GiB") && Contains("workspace 4.00 GiB") &&
                        Contains("512 tokens") && Contains("cache 55.00 GiB") &&
                        Contains("together 101.00 GiB") && Contains("less --kv-memory"));
  request.kv_memory = 54 * kGiB;
  CHECK(PlanMemory(request).left == 0);
  request.kv_memory = kGiB / 16;
  CHECK_THROWS_WITH(PlanMemory(request), Contains("at least 2 pages of 67108864 bytes") &&
                                             Contains("67108864 bytes hold 1"));
  request.kv_memory = 0;
  request.weights = 94 * kGiB - kGiB / 16;
  CHECK_THROWS_WITH(PlanMemory(request), Contains("more ranks"));
  request.weights -= kGiB / 16;
  CHECK(PlanMemory(request).pages == 2);
  request.weights = 200 * kGiB;
  CHECK_THROWS_WITH(PlanMemory(request), Contains("weights 200.00 GiB"));
}

TEST_CASE("the plan is told in one block") {
  const MemoryRequest request = Request();
  const std::string text = Describe(request, weft::WithPages(request, 101));
  CHECK(text ==
        "memory of a rank, in GPU 0 NVIDIA H200:\n"
        "  weights      40.00 GiB\n"
        "  workspace     4.00 GiB  steps of up to 512 tokens\n"
        "  exchange      1.00 GiB\n"
        "  libraries     1.00 GiB\n"
        "  cache         6.31 GiB  100 pages of 64.0 MiB, 12800 tokens over 2 ranks; and page 0, "
        "which "
        "no token takes\n"
        "  left         47.69 GiB  of 100.00 GiB");
  CHECK(weft::BytesText(0) == "0.0 KiB");
  CHECK(weft::BytesText(1536) == "1.5 KiB");
  CHECK(weft::BytesText(3 << 20) == "3.0 MiB");
}

TEST_CASE("a step needs memory by its tokens and not by tokens times the context") {
  const weft::ModelConfig config = Large();
  const int64_t small = weft::StepBytes(config, 1024, 16 << 10, 256, 1, 1);
  const int64_t large = weft::StepBytes(config, 1024, 1 << 20, 256, 1, 1);
  CHECK(large - small == 4 * ((1 << 20) - (16 << 10)));  // one row of scores, not 1024
  CHECK(weft::StepBytes(config, 256, 1 << 20, 256, 1, 1) < 2 * large);
  CHECK(large > int64_t{1024} * 4 * 128 * (576 + 512));  // the heads' queries and outputs alone
  CHECK(weft::StepBytes(config, 1024, 1 << 20, 256, 8, 1) < large / 2);
}
