// What attention read, told with the tokens: whatever engines die, each list once.
#include <catch2/catch.hpp>

#include "tests/server/replay_bench.h"

namespace weft::server {
namespace {

v1::GenerateRequest Selecting(const std::vector<int>& layers, const std::vector<int>& outputs) {
  v1::GenerateRequest request = TextRequest("x", 6);
  for (int layer : layers) request.mutable_selected()->add_layers(layer);
  for (int output : outputs) request.mutable_selected()->add_outputs(output);
  return request;
}

void CheckLists(const Heard& heard, const std::vector<int>& layers,
                const std::vector<int>& outputs) {
  REQUIRE(heard.selected.size() == layers.size() * outputs.size());
  for (size_t i = 0; i < heard.selected.size(); ++i) {
    CAPTURE(i);
    const v1::SelectedTokens& list = heard.selected[i];
    const int output = outputs[i / layers.size()], layer = layers[i % layers.size()];
    CHECK(list.output_index() == output);
    CHECK(list.layer() == layer);
    REQUIRE(list.positions_size() == 2);
    CHECK(list.positions(0) == layer);
    CHECK(list.positions(1) == output + 10);
    CHECK(heard.selected_after[i] <= static_cast<size_t>(output));  // before its own token
  }
}

}  // namespace

TEST_CASE("selected: lists come with their tokens and not otherwise") {
  Bench bench;
  bench.engine->set_script(Saying("abcdef"));
  const Heard heard = bench.Generate(Selecting({2, 0}, {0, 1, 5}));
  REQUIRE(heard.status.ok());
  CHECK(heard.text == "abcdef");
  CheckLists(heard, {2, 0}, {0, 1, 5});
  CHECK(bench.Generate(TextRequest("x", 6)).selected.empty());
}

TEST_CASE("selected: an engine dying after any token repeats and loses no list") {
  const std::vector<int> layers = {0, 3}, outputs = {0, 2, 3, 5};
  for (int tokens = 0; tokens <= 6; ++tokens) {
    INFO("after " << tokens);
    Bench bench;
    bench.engine->set_script(Saying("abcdef", tokens));  // the lists of the next token were sent
    Call call(&bench, Selecting(layers, outputs));
    REQUIRE(Eventually([&] { return bench.engine->running() == 1 && call.tokens() == tokens; }));
    Replace(&bench, Saying("abcdef"));
    const Heard& heard = call.End();
    REQUIRE(heard.status.ok());
    CHECK(heard.text == "abcdef");
    CHECK(heard.complete.replays() == 1);
    CheckLists(heard, layers, outputs);
    const engine::v1::GenerateRequest replayed = bench.engine->last_request();
    for (int output : replayed.selected().outputs()) CHECK(output >= tokens);
  }
}

TEST_CASE(
    "selected: a token that a stop string cuts off tells its lists and those behind it none") {
  Bench bench;
  bench.engine->set_script(Saying("abcdef"));
  v1::GenerateRequest request = Selecting({1}, {0, 1, 2, 3, 4});
  request.mutable_sampling()->add_stop("bc");
  const Heard heard = bench.Generate(request);
  REQUIRE(heard.status.ok());
  CHECK(heard.text == "a");
  REQUIRE(heard.selected.size() == 3);
  CHECK(heard.selected.back().output_index() == 2);
}

}  // namespace weft::server
