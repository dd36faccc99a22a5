#include "engine/app/backend.h"

#include <catch2/catch.hpp>

#include "engine/app/device_probe.h"

using Catch::Matchers::Contains;
using weft::Backend;
using weft::BackendDecision;
using weft::DecideBackend;
using weft::RankFacts;

namespace {

RankFacts Gpu(const std::string& host, int device, const std::string& uuid) {
  return {host, {"", device, "NVIDIA H200", uuid, int64_t{100} << 30, int64_t{140} << 30}};
}

RankFacts Without(const std::string& host, const std::string& problem) {
  RankFacts facts;
  facts.host = host;
  facts.device.problem = problem;
  return facts;
}

const std::vector<RankFacts> kTwo = {Gpu("a", 0, "u0"), Gpu("a", 1, "u1")};

}  // namespace

TEST_CASE("auto takes cuda when every rank has a GPU of its own") {
  const BackendDecision decision = DecideBackend(Backend::kAuto, false, true, kTwo);
  CHECK(decision.cuda);
  CHECK_FALSE(decision.staged);
  CHECK(decision.reason == "backend cuda: every rank has a GPU, NCCL between them");
  CHECK(decision.ranks == std::vector<std::string>{"rank 0 (host a, GPU 0 NVIDIA H200)",
                                                   "rank 1 (host a, GPU 1 NVIDIA H200)"});
  CHECK(decision.sharing == std::vector<int32_t>{1, 1});
  const BackendDecision alone = DecideBackend(Backend::kAuto, false, true, {kTwo[0]});
  CHECK(alone.reason == "backend cuda: every rank has a GPU");
  CHECK_FALSE(alone.staged);
}

TEST_CASE("auto takes cpu when one rank has no GPU of its own and says which") {
  const auto missing = DecideBackend(Backend::kAuto, false, true,
                                     {kTwo[0], Without("b", "no NVIDIA driver is installed")});
  CHECK_FALSE(missing.cuda);
  CHECK(missing.reason ==
        "backend cpu: not every rank has a GPU of its own: rank 1 (host b): no NVIDIA driver is "
        "installed");
  const auto taken = DecideBackend(Backend::kAuto, false, true, {kTwo[0], Gpu("a", 0, "u0")});
  CHECK_FALSE(taken.cuda);
  CHECK_THAT(taken.reason, Contains("rank 1 (host a, GPU 0 NVIDIA H200): its GPU is taken by "
                                    "rank 0 of this job"));
}

TEST_CASE("a backend that was asked for is taken or refused with all reasons") {
  CHECK_FALSE(DecideBackend(Backend::kCpu, false, true, kTwo).cuda);
  CHECK(DecideBackend(Backend::kCuda, false, true, kTwo).reason ==
        "backend cuda, as asked for, NCCL between them");
  CHECK_THROWS_WITH(
      DecideBackend(Backend::kCuda, false, true,
                    {Without("a", "GPU 0 (NVIDIA A100) has compute capability 8.0"),
                     Gpu("b", 0, "u"), Gpu("b", 0, "u")}),
      Contains("--backend cuda: rank 0 (host a): GPU 0 (NVIDIA A100)") &&
          Contains("; rank 2 (host b, GPU 0 NVIDIA H200): its GPU is taken by rank 1") &&
          Contains("--share-device on"));
  std::vector<RankFacts> many(20, Without("c", "the host shows no GPU"));
  CHECK_THROWS_WITH(DecideBackend(Backend::kCuda, false, true, many),
                    "--backend cuda: rank 0 (host c) and 19 more: the host shows no GPU");
  for (size_t r = 0; r < many.size(); ++r) many[r].device.problem += " " + std::to_string(r);
  CHECK_THROWS_WITH(DecideBackend(Backend::kCuda, false, true, many),
                    Contains("; rank 7 (host c): the host shows no GPU 7; and 12 more problems"));
}

TEST_CASE("shared GPUs and builds without NCCL exchange through the host") {
  const std::vector<RankFacts> same = {Gpu("a", 0, "u0"), Gpu("a", 0, "u0"), Gpu("a", 1, "u1")};
  const BackendDecision shared = DecideBackend(Backend::kCuda, true, true, same);
  CHECK(shared.cuda);
  CHECK(shared.staged);
  CHECK(shared.sharing == std::vector<int32_t>{2, 2, 1});
  CHECK_THAT(shared.reason, Contains("ranks share GPUs"));
  const BackendDecision without = DecideBackend(Backend::kAuto, false, false, kTwo);
  CHECK(without.staged);
  CHECK_THAT(without.reason, Contains("this build has no NCCL"));
}

TEST_CASE("facts and decisions survive the wire") {
  const RankFacts facts = weft::ToRankFacts(weft::ToSettings(kTwo[1]));
  CHECK(facts.host == "a");
  CHECK(facts.device.device == 1);
  CHECK(facts.device.name == "NVIDIA H200");
  CHECK(facts.device.uuid == "u1");
  CHECK(facts.device.free_bytes == int64_t{100} << 30);
  CHECK(facts.device.total_bytes == int64_t{140} << 30);
  CHECK_THROWS_WITH(weft::ToRankFacts({{"host", "a"}}), Contains("lack 'problem'"));
  BackendDecision decision = DecideBackend(Backend::kCuda, true, true, kTwo);
  decision.nccl_id = std::string("\0id\xff", 4);
  const BackendDecision back = weft::DecodeDecision(weft::Encode(decision));
  CHECK(back.cuda == decision.cuda);
  CHECK(back.staged == decision.staged);
  CHECK(back.nccl_id == decision.nccl_id);
  CHECK(back.ranks == decision.ranks);
  CHECK(back.sharing == decision.sharing);
  CHECK(back.reason == decision.reason);
  CHECK_THROWS(weft::DecodeDecision(weft::Encode(decision).substr(0, 9)));
}

TEST_CASE("the probe of this machine finds a Hopper GPU or says why not") {
  const weft::DeviceFacts facts = weft::ProbeDevice({}, 0);
  if (facts.problem.empty()) {
    CHECK(facts.device == 0);
    CHECK(facts.total_bytes > 0);
    CHECK(facts.uuid.size() == 32);
    CHECK_THAT(weft::ProbeDevice({777}, 0).problem, Contains("--device asks for GPU 777"));
  } else {
    CHECK(facts.problem.size() > 15);
  }
}
