// The engine's gRPC door: what of a request reaches the engine, Abort, callers that leave, and
// messages beyond gRPC's default limit.
#include <catch2/catch.hpp>
#include <random>

#include "engine/rpc/translate.h"
#include "tests/rpc/served_engine.h"

namespace weft::test {
namespace {

namespace v1 = engine::v1;

const SchedulerOptions kOptions{16, 4, /*ranks=*/2, /*page_tokens=*/4, /*pages=*/1 + 400};

struct RpcOutcome {
  std::vector<int32_t> tokens;
  v1::Finished finished;
  grpc::Status status;
};

template <typename Reader>
RpcOutcome ReadAll(Reader* reader) {
  RpcOutcome outcome;
  for (v1::GenerateEvent event; reader->Read(&event);) {
    if (event.has_token()) outcome.tokens.push_back(event.token().id());
    if (event.has_finished()) outcome.finished = event.finished();
  }
  outcome.status = reader->Finish();
  return outcome;
}

}  // namespace

TEST_CASE("rpc: every field of a request reaches the engine") {
  v1::GenerateRequest request = RpcRequest({1, 2, 3}, 9);
  request.set_request_id("r");
  request.add_committed_ids(4);
  request.set_seed(1ull << 63);
  request.add_stop_ids(7);
  request.set_logprobs_from(1);
  request.set_prompt_logprobs(5);
  request.set_cache_salt("salt");
  request.set_prefill_progress(true);
  request.mutable_selected()->add_layers(2);
  request.mutable_selected()->add_outputs(8);
  v1::Sampling* sampling = request.mutable_sampling();
  sampling->set_temperature(0.5f);
  sampling->set_top_p(0.9f);
  sampling->set_top_k(40);
  sampling->set_min_p(0.1f);
  sampling->set_repetition_penalty(1.25f);
  sampling->set_frequency_penalty(-1);
  sampling->set_presence_penalty(2);
  (*sampling->mutable_logit_bias())[9] = 1;
  (*sampling->mutable_logit_bias())[2] = -1;
  sampling->set_min_tokens(3);
  const EngineRequest without = Translate(request);
  CHECK(without.sampling.alternatives == -1);
  sampling->set_logprobs(0);
  const EngineRequest got = Translate(request);
  SamplingParams want{0.5f, 0.9f, 1ull << 63, 40, 0.1f, 1.25f, -1, 2, 3, 0};
  want.logit_bias = {{2, -1}, {9, 1}};
  CHECK(got.sampling == want);
  CHECK(got.request_id == "r");
  CHECK(got.prompt == std::vector<int32_t>{1, 2, 3});
  CHECK(got.committed == std::vector<int32_t>{4});
  CHECK(got.max_tokens == 9);
  CHECK(got.stop_ids == std::vector<int32_t>{7});
  CHECK(got.logprobs_from == 1);
  CHECK(got.prompt_alternatives == 5);
  CHECK(got.cache_salt == "salt");
  CHECK(got.prefill_progress);
  CHECK_FALSE(got.has_place);
  CHECK_FALSE(got.resumed);
  request.mutable_honour();  // of an earlier front end, or after the loss of an engine
  CHECK(Translate(request).resumed);
  request.set_has_place(true);
  request.set_further_choices(3);
  CHECK_FALSE(Translate(request).resumed);
  CHECK(Translate(request).has_place);
  CHECK(Translate(request).further_choices == 3);
  CHECK(got.traced_layers == std::vector<int32_t>{2});
  CHECK(got.traced_outputs == std::vector<int32_t>{8});
}

TEST_CASE("rpc: Abort ends a request with its figures and is harmless twice late or unknown") {
  ServedEngine served(kOptions);
  served.fake.model.during_step = [] { std::this_thread::sleep_for(std::chrono::milliseconds(1)); };
  v1::GenerateRequest request = RpcRequest(FakePrompt(10, 1), 1000);
  request.set_request_id("mine");
  grpc::ClientContext context;
  const auto reader = served.stub->Generate(&context, request);
  v1::GenerateEvent event;
  while (!event.has_token()) REQUIRE(reader->Read(&event));
  CHECK(served.Abort("another").ok());
  CHECK(served.Abort("mine").ok());
  CHECK(served.Abort("mine").ok());
  const RpcOutcome outcome = ReadAll(reader.get());
  CHECK(outcome.status.ok());
  CHECK(outcome.finished.reason() == v1::ABORTED);
  CHECK(outcome.finished.prompt_tokens() == 10);
  CHECK(outcome.finished.output_tokens() == static_cast<int>(outcome.tokens.size()) + 1);
  CHECK(outcome.finished.output_tokens() < 1000);
  CHECK(served.Idle());
  CHECK(served.Abort("mine").ok());
  grpc::ClientContext next;
  CHECK(ReadAll(served.stub->Generate(&next, RpcRequest({1}, 5)).get()).tokens ==
        FakeContinuation({1}, 5));
}

TEST_CASE("rpc: two hundred callers that leave at random leave nothing behind") {
  ServedEngine served(kOptions);
  std::mt19937 random(3);
  std::vector<std::thread> callers;
  for (int thread = 0; thread < 4; ++thread) {
    callers.emplace_back([&served, seed = random()] {
      std::mt19937 own(seed);
      for (int i = 0; i < 50; ++i) {
        grpc::ClientContext context;
        const auto reader = served.stub->Generate(
            &context, RpcRequest(FakePrompt(1 + static_cast<int32_t>(own() % 60), i), 500));
        v1::GenerateEvent event;
        for (uint32_t read = own() % 12; read > 0 && reader->Read(&event); --read) {
        }
        context.TryCancel();
        while (reader->Read(&event)) {
        }
        reader->Finish();
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  CHECK(served.Idle());
}

TEST_CASE("rpc: a request beyond gRPC's default of 4 MiB is taken") {
  // One step, so that the stand-in's own checks stay cheap.
  const int32_t count = 3000000;
  ServedEngine served({count + 8, 1, /*ranks=*/1, /*page_tokens=*/8192, /*pages=*/1 + 400},
                      count + 8);
  v1::GenerateRequest request;
  {
    std::vector<int32_t> prompt(count, 999);  // two bytes each
    prompt.back() = 5;
    request = RpcRequest(prompt, 1);
  }
  REQUIRE(request.ByteSizeLong() > 5000000);
  grpc::ClientContext context;
  const RpcOutcome outcome = ReadAll(served.stub->Generate(&context, request).get());
  CHECK(outcome.status.error_message() == "");
  CHECK(outcome.finished.prompt_tokens() == count);
  CHECK(outcome.tokens.size() == 1);
}

TEST_CASE("rpc: a caller that does not read pauses its sequence and loses nothing") {
  ServedEngine served(kOptions, 3000);
  const std::vector<int32_t> prompt = FakePrompt(10, 1);
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 1024);
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  const auto stub = v1::Engine::NewStub(
      grpc::CreateCustomChannel(served.address, grpc::InsecureChannelCredentials(), arguments));
  grpc::ClientContext context;
  const auto reader = stub->Generate(&context, RpcRequest(prompt, 2000));
  // Until no step is made any more: not before the first event and 256 tokens wait, which is all
  // where this machine sends nothing meanwhile.
  int64_t before = -1;
  const auto deadline = Clock::now() + std::chrono::seconds(60);
  for (int64_t now = 0; (now < 256 || now != before) && Clock::now() < deadline;) {
    before = now;
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    now = served.fake.engine.State().steps;
  }
  INFO(before << " steps");
  CHECK(before >= 256);
  CHECK(before < 1500);
  CHECK(served.fake.engine.State().running == 1);
  CHECK(served.fake.engine.State().last_step_age_seconds == 0);  // it does not hang
  // Others go on meanwhile.
  grpc::ClientContext next;
  CHECK(ReadAll(served.stub->Generate(&next, RpcRequest({1}, 50)).get()).tokens ==
        FakeContinuation({1}, 50));
  const RpcOutcome outcome = ReadAll(reader.get());
  CHECK(outcome.status.ok());
  CHECK(outcome.tokens == FakeContinuation(prompt, 2000));
  CHECK(served.Idle());
}

TEST_CASE("rpc: what the engine refuses ends with its status") {
  ServedEngine served(kOptions);
  v1::GenerateRequest request = RpcRequest({1, 2}, 5);
  request.mutable_sampling()->set_top_k(-1);
  grpc::ClientContext context;
  const auto reader = served.stub->Generate(&context, request);
  v1::GenerateEvent event;
  CHECK_FALSE(reader->Read(&event));  // nor was it admitted before
  const grpc::Status status = reader->Finish();
  CHECK(status.error_code() == grpc::StatusCode::INVALID_ARGUMENT);
  CHECK(status.error_message() == "top_k must be at least 0, got -1");
}

TEST_CASE("rpc: a full queue tells when to try again") {
  ServedEngine served(kOptions, 4096, /*max_waiting=*/0);
  served.fake.model.during_step = [] { std::this_thread::sleep_for(std::chrono::milliseconds(5)); };
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReader<v1::GenerateEvent>>> readers;
  v1::GenerateEvent event;
  for (int i = 0; i < 4; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    readers.push_back(
        served.stub->Generate(contexts.back().get(), RpcRequest(FakePrompt(10, i), 1000)));
    do REQUIRE(readers.back()->Read(&event));
    while (!event.has_token());
  }
  grpc::ClientContext context;
  const RpcOutcome outcome = ReadAll(served.stub->Generate(&context, RpcRequest({1}, 5)).get());
  CHECK(outcome.status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED);
  CHECK_THAT(outcome.status.error_message(), Catch::Matchers::Contains("try again in 1 s"));
  const auto& metadata = context.GetServerTrailingMetadata();
  const auto found = metadata.find("retry-after-ms");
  REQUIRE(found != metadata.end());
  CHECK(std::string(found->second.data(), found->second.size()) == "1000");
  for (const auto& running : contexts) running->TryCancel();
  for (const auto& reader : readers) {
    while (reader->Read(&event)) {
    }
    reader->Finish();
  }
  CHECK(served.Idle());
}

TEST_CASE("rpc: the prefill's progress comes before the first token") {
  ServedEngine served(kOptions);
  v1::GenerateRequest request = RpcRequest(FakePrompt(40, 1), 2);
  request.set_prefill_progress(true);
  grpc::ClientContext context;
  const auto reader = served.stub->Generate(&context, request);
  std::vector<int> done;
  int tokens = 0;
  for (v1::GenerateEvent event; reader->Read(&event);) {
    tokens += event.has_token();
    if (!event.has_prefill()) continue;
    CHECK(tokens == 0);
    CHECK(event.prefill().total() == 40);
    done.push_back(event.prefill().done());
  }
  CHECK(reader->Finish().ok());
  CHECK(done == std::vector<int>{16, 32});
  CHECK(tokens == 2);
}

TEST_CASE("rpc: what attention read comes before its token") {
  ServedEngine served(kOptions);
  v1::GenerateRequest request = RpcRequest(FakePrompt(10, 1), 4);
  for (int layer : {0, 2}) request.mutable_selected()->add_layers(layer);
  for (int output : {0, 3}) request.mutable_selected()->add_outputs(output);
  grpc::ClientContext context;
  const auto reader = served.stub->Generate(&context, request);
  std::vector<std::pair<int, int>> lists;  // output, layer
  int tokens = 0;
  for (v1::GenerateEvent event; reader->Read(&event);) {
    tokens += event.has_token();
    if (!event.has_selected()) continue;
    const v1::SelectedTokens& list = event.selected();
    lists.emplace_back(list.output_index(), list.layer());
    CHECK(list.output_index() == tokens);
    CHECK(list.all() == (list.layer() == 0));
    REQUIRE(list.positions_size() == 2);
    CHECK(list.positions(1) == 9 + tokens);
  }
  CHECK(reader->Finish().ok());
  CHECK(lists == std::vector<std::pair<int, int>>{{0, 0}, {0, 2}, {3, 0}, {3, 2}});
}

TEST_CASE("rpc: selected beyond its bounds is refused by name") {
  ServedEngine served(kOptions, 1 << 22);
  const auto refused = [&](const std::vector<int>& layers, const std::vector<int>& outputs) {
    v1::GenerateRequest request = RpcRequest({1, 2}, 1500);
    for (int layer : layers) request.mutable_selected()->add_layers(layer);
    for (int output : outputs) request.mutable_selected()->add_outputs(output);
    grpc::ClientContext context;
    const RpcOutcome outcome = ReadAll(served.stub->Generate(&context, request).get());
    CHECK(outcome.status.error_code() == grpc::StatusCode::INVALID_ARGUMENT);
    return outcome.status.error_message();
  };
  CHECK(refused({0, 3}, {0}) == "selected.layers[1] must be in [0, 3), got 3");
  CHECK(refused({0, 1, 0}, {0}) == "selected.layers[2] must be told once, got 0 again");
  CHECK(refused({0}, {4, 4}) == "selected.outputs[1] must be told once, got 4 again");
  CHECK(refused({0}, {1500}) == "selected.outputs[0] must be in [0, max_tokens), got 1500");
}

TEST_CASE("rpc: a replay keeps its m by layer or is refused") {
  ServedEngine served(kOptions);
  const auto replay = [&](const std::vector<int32_t>& layer_m, v1::SelectionMode mode) {
    v1::GenerateRequest request = RpcRequest(FakePrompt(10, 1), 3);
    v1::Admitted* before = request.mutable_honour();
    before->set_mode(mode);
    before->set_index_topk(8);
    before->set_m(mode == v1::EXACT ? 8 : 7);
    before->mutable_layer_m()->Add(layer_m.begin(), layer_m.end());
    before->set_model("model");
    before->set_placement("placement");
    before->set_partition("gather");
    before->set_exchange("rows");
    before->set_arithmetic("fake");
    grpc::ClientContext context;
    const auto reader = served.stub->Generate(&context, request);
    std::vector<int32_t> told;
    for (v1::GenerateEvent event; reader->Read(&event);) {
      if (!event.has_admitted()) continue;
      told.assign(event.admitted().layer_m().begin(), event.admitted().layer_m().end());
    }
    const grpc::Status status = reader->Finish();
    CHECK(told == (status.ok() ? layer_m : std::vector<int32_t>()));
    return status.error_code();
  };
  CHECK(replay({5, 7, 6}, v1::CERTIFIED) == grpc::StatusCode::OK);
  CHECK(served.fake.model.plans.back().rows[0].selection.layer_m == std::vector<int32_t>{5, 7, 6});
  CHECK(replay({}, v1::CERTIFIED) == grpc::StatusCode::OK);
  for (const std::vector<int32_t>& wrong :
       std::vector<std::vector<int32_t>>{{5, 7}, {5, 8, 6}, {5, 0, 6}, {5, 6, 7, 7}}) {
    CHECK(replay(wrong, v1::INTERLEAVED) == grpc::StatusCode::FAILED_PRECONDITION);
  }
  CHECK(replay({5, 7, 6}, v1::EXACT) == grpc::StatusCode::FAILED_PRECONDITION);
}

}  // namespace weft::test
