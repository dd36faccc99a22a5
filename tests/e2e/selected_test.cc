// What attention read, told over gRPC by real ranks: lists that a reader can check against each
// other and against the figures of the same reply.
#include <grpcpp/grpcpp.h>
#include <signal.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <numeric>

#include "tests/e2e/server_process.h"

using namespace weft;
using namespace weft::e2e;

namespace {

constexpr int kLayers = 6, kTopK = 64, kOutputs = 5;

using Lists = std::map<std::pair<int, int>, std::vector<int32_t>>;  // by layer and output

v1::GenerateRequest Asking(const std::string& mode) {
  v1::GenerateRequest request;
  std::string text;
  for (int i = 0; i < 40; ++i) {
    text += "The access code of bay " + std::to_string(100 + 7 * i) + " is " +
            std::to_string(300 + 11 * i % 97) + "-P. ";
  }
  request.set_text(text + "The access code of bay 128 is");
  request.mutable_sampling()->set_temperature(0);
  request.mutable_sampling()->set_max_tokens(kOutputs);
  request.mutable_sampling()->set_ignore_eos(true);
  request.mutable_selection()->set_mode(mode);
  request.mutable_selection()->set_index_topk(kTopK);
  request.mutable_selection()->set_coverage(0.5);  // so that some unions lack something
  for (int layer = 0; layer < kLayers; ++layer) request.mutable_selected()->add_layers(layer);
  for (int output = 0; output < kOutputs; ++output) {
    request.mutable_selected()->add_outputs(output);
  }
  return request;
}

// Of a reply that told every layer and output: each list once, ascending, within its context.
Lists Told(const Reply& reply) {
  REQUIRE(reply.status.error_message() == "");
  REQUIRE(reply.tokens.size() == kOutputs);
  REQUIRE(reply.selected.size() == kLayers * kOutputs);
  Lists lists;
  for (const v1::SelectedTokens& told : reply.selected) {
    CAPTURE(told.layer(), told.output_index());
    CHECK_FALSE(told.all());
    const std::vector<int32_t> positions(told.positions().begin(), told.positions().end());
    REQUIRE(positions.size() >= kTopK);
    CHECK(positions.front() >= 0);
    CHECK(std::is_sorted(positions.begin(), positions.end(), std::less_equal<>()));
    CHECK(positions.back() < reply.complete.usage().prompt_tokens() + told.output_index());
    CHECK(lists.emplace(std::pair(told.layer(), told.output_index()), positions).second);
  }
  return lists;
}

// The query of output 0 is the prompt's last; those of the others are what decoding ran.
void CheckFigures(const Lists& lists, const v1::SelectionReport& report) {
  const v1::SelectionFigures& decode = report.decode();
  size_t united = 0;
  for (const auto& [at, list] : lists) united += at.second > 0 ? list.size() : 0;
  CHECK(decode.pairs() == kLayers * (kOutputs - 1));
  CHECK(decode.mean_union() * static_cast<double>(decode.pairs()) ==
        Approx(static_cast<double>(united)));
  const size_t whole = static_cast<size_t>(report.m() * report.ranks());
  for (const auto& [at, list] : lists) {
    CAPTURE(at.first, at.second);
    if (report.mode() == "interleaved") CHECK(list.size() == whole);
    if (report.mode() == "certified") CHECK(list.size() >= whole);
  }
}

bool Holds(const std::vector<int32_t>& list, const std::vector<int32_t>& part) {
  return std::includes(list.begin(), list.end(), part.begin(), part.end());
}

}  // namespace

TEST_CASE("selected: exact lists are those of one rank and approximate ones hold what they must") {
  Lists want;
  std::vector<int32_t> tokens;
  const std::vector<std::vector<std::string>> servers = {{"--ranks", "1"},
                                                         {"--ranks", "2"},
                                                         {"--ranks", "3"},
                                                         {"--ranks", "3", "--exchange", "partial"}};
  for (const auto& arguments : servers) {
    CAPTURE(arguments);
    ServerProcess server(arguments);
    const Reply exact = Generate(server.stub(), Asking("exact"));
    const Lists lists = Told(exact);
    for (const auto& [at, list] : lists) CHECK(list.size() == kTopK);
    CHECK(exact.complete.selection().decode().mean_union() == kTopK);
    if (want.empty()) {
      want = lists;
      tokens = exact.tokens;
      continue;
    }
    const bool same_bits = arguments.size() == 2;  // of rows; partial agrees to rounding
    if (same_bits) CHECK(lists == want);
    if (same_bits) CHECK(exact.tokens == tokens);
    // Below the first layer nothing was approximated yet: it scores the same in every mode.
    const std::vector<int32_t> top = lists.at({0, 0});
    std::vector<int32_t> first;  // the union before a second round
    for (const std::string mode : {"interleaved", "certified"}) {
      CAPTURE(mode);
      const Reply reply = Generate(server.stub(), Asking(mode));
      const Lists got = Told(reply);
      CheckFigures(got, reply.complete.selection());
      const std::vector<int32_t>& list = got.at({0, 0});
      if (mode == "interleaved") {
        first = list;
      } else {
        CHECK(Holds(list, top));
        CHECK(Holds(list, first));
        CHECK((list == first) == Holds(first, top));
      }
      const v1::SelectionFigures& prefill = reply.complete.selection().prefill();
      CHECK(prefill.pairs_covered() < prefill.pairs());
      CHECK(prefill.second_rounds() ==
            (mode == "certified" ? prefill.pairs() - prefill.pairs_covered() : 0));
    }
  }
}

TEST_CASE("selected: where nothing was cut and how many lists a request may ask for") {
  // As long a list as the longest context: 2^17, so that 2^7 of them are 2^24 positions.
  ServerProcess server({"--ranks", "2", "--max-index-topk", "131072"});
  v1::GenerateRequest request = Asking("dense");
  const Reply dense = Generate(server.stub(), request);
  REQUIRE(dense.selected.size() == kLayers * kOutputs);
  for (const v1::SelectedTokens& told : dense.selected) {
    CHECK(told.all());
    CHECK(told.positions().empty());
  }

  request = Asking("exact");
  request.set_text("Rita");
  request.mutable_selection()->set_index_topk(131072);
  request.mutable_sampling()->set_max_tokens(129);
  request.mutable_selected()->clear_layers();
  request.mutable_selected()->add_layers(3);
  while (request.selected().outputs_size() < 128) {
    request.mutable_selected()->add_outputs(request.selected().outputs_size());
  }
  const Reply most = Generate(server.stub(), request);
  CHECK(most.status.error_message() == "");
  CHECK(most.selected.size() == 128);
  for (const v1::SelectedTokens& told : most.selected) CHECK(told.all());

  request.mutable_selected()->add_outputs(128);
  const Reply refused = Generate(server.stub(), request);
  CHECK(refused.status.error_code() == grpc::StatusCode::INVALID_ARGUMENT);
  CHECK(
      refused.status.error_message() ==
      "selected must be of at most 16777216 positions, got 129 lists (layers times outputs) of up "
      "to 131072");
  request.mutable_selection()->set_mode("interleaved");
  request.mutable_selection()->set_index_topk(256);  // so much shorter that they may
  request.mutable_sampling()->set_ignore_eos(false);
  CHECK(Generate(server.stub(), request).status.ok());
}

TEST_CASE("selected: a rank that dies amid a chat costs no list and repeats none") {
  constexpr int kTokens = 24;
  v1::ChatRequest request;
  v1::Message* message = request.add_messages();
  message->set_role("user");
  message->set_content(Asking("exact").text());
  *request.mutable_selection() = Asking("exact").selection();
  request.mutable_sampling()->set_temperature(0);
  request.mutable_sampling()->set_max_tokens(kTokens);
  request.mutable_sampling()->set_ignore_eos(true);
  request.mutable_selected()->add_layers(4);
  for (int output = 0; output < kTokens; ++output) {
    request.mutable_selected()->add_outputs(output);
  }
  ServerProcess server({"--ranks", "2"});
  const Reply calm = Chat(server.stub(), request);
  REQUIRE(calm.status.error_message() == "");
  REQUIRE(calm.selected.size() == kTokens);

  grpc::ClientContext context;
  const auto reader = server.stub().Chat(&context, request);
  Reply reply;
  bool killed = false;
  for (v1::GenerateResponse event; reader->Read(&event);) {
    reply.Take(event);
    if (killed || reply.tokens.size() < 4) continue;
    REQUIRE(kill(server.Ranks().at(1), SIGKILL) == 0);
    killed = true;
  }
  CHECK(reader->Finish().error_message() == "");
  CHECK(reply.complete.replays() == 1);
  CHECK(reply.tokens == calm.tokens);
  REQUIRE(reply.selected.size() == kTokens);
  for (size_t i = 0; i < kTokens; ++i) {
    CHECK(reply.selected[i].output_index() == static_cast<int>(i));
    CHECK(reply.selected[i].SerializeAsString() == calm.selected[i].SerializeAsString());
  }
}
