// --margin auto through all of Weft: what one request shows, the next one uses and tells.
#include <grpcpp/grpcpp.h>

#include <catch2/catch.hpp>

#include "tests/e2e/server_process.h"

using namespace weft;
using namespace weft::e2e;

TEST_CASE("margin auto: lists are as long as the loads seen so far ask for") {
  constexpr int kTopK = 64, kRanks = 3;
  ServerProcess server({"--ranks", std::to_string(kRanks), "--margin", "auto"});
  v1::GenerateRequest request;
  for (int i = 0; i < 90; ++i) {
    request.set_text(request.text() + "The access code of bay " + std::to_string(100 + 7 * i) +
                     " is " + std::to_string(300 + 11 * i % 97) + "-P. ");
  }
  request.mutable_sampling()->set_max_tokens(1);
  request.mutable_selection()->set_mode("certified");
  request.mutable_selection()->set_index_topk(kTopK);
  request.mutable_selection()->set_coverage(0.9);

  const Reply first = Generate(server.stub(), request);
  REQUIRE(first.status.error_message() == "");
  REQUIRE(first.complete.usage().prompt_tokens() > 1000 + kTopK);  // enough to learn from
  CHECK_FALSE(first.complete.selection().has_layer_m());

  const Reply second = Generate(server.stub(), request);
  REQUIRE(second.status.error_message() == "");
  const v1::SelectionReport& report = second.complete.selection();
  CHECK(report.m() == first.complete.selection().m());
  REQUIRE(report.has_layer_m());
  const v1::LayerMargins& margins = report.layer_m();
  CHECK(margins.least() >= (kTopK + kRanks - 1) / kRanks);
  CHECK(margins.least() <= margins.mean());
  CHECK(margins.mean() <= margins.greatest());
  CHECK(margins.greatest() <= report.m());
  CHECK(margins.least() < report.m());
  // The same document: the wanted share has no second round, and all of the top-K is read.
  const v1::SelectionFigures& figures = report.prefill();
  CHECK(second.complete.usage().cached_tokens() == 0);  // of another m
  CHECK(figures.pairs_covered() + figures.second_rounds() == figures.pairs());
  CHECK(static_cast<double>(figures.pairs_covered()) > 0.85 * static_cast<double>(figures.pairs()));
  CHECK(figures.mean_union_planned() == Approx(report.m() * kRanks).epsilon(0.01));
}

TEST_CASE("margin auto: what it cannot do on GPUs is refused before the start") {
  ServerProcess server({"--ranks", "2", "--margin", "auto", "--backend", "cuda"}, false);
  CHECK(server.Wait(60) == 2);
  CHECK_THAT(server.Log(),
             Catch::Contains("--margin: auto is for --backend cpu") && !Catch::Contains("mpirun"));
}
