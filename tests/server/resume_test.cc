// Front ends that die while requests run: a client goes on at another one, and has exactly the
// text, tokens and log-probabilities of a stream that was never lost.
#include <catch2/catch.hpp>
#include <map>
#include <thread>

#include "server/api/resume_token.h"
#include "tests/server/replay_bench.h"
#include "tools/client/position.h"

namespace weft::server {
namespace {

using Catch::Matchers::Contains;
using grpc::StatusCode;
using std::chrono::milliseconds;

// What one choice of a request gave over all of its streams.
struct Part {
  std::string text, reasoning, arguments;
  std::vector<std::string> calls;
  std::vector<int32_t> ids;
  std::vector<float> logprobs;
  int tops = 0;
  v1::Complete complete;
  bool completed = false;
};

// A client that keeps what resuming takes. Its streams run on a thread.
class Client {
 public:
  ~Client() { End(); }

  template <typename Request>
  void Start(Bench* bench, Request request) {
    context_ = std::make_unique<grpc::ClientContext>();
    context_->set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    if (position.started()) *request.mutable_resume() = position.resume();
    thread_ = std::thread([this, bench, request] {
      auto reader = Open(bench, request);
      for (v1::GenerateResponse response; reader->Read(&response);) Take(response);
      status = reader->Finish();
    });
  }
  void End() {
    if (thread_.joinable()) thread_.join();
  }
  template <typename Request>
  void Run(Bench* bench, const Request& request) {
    Start(bench, request);
    End();
  }
  int responses() const { return responses_; }
  int tokens() const { return tokens_; }

  client::Position position;
  grpc::Status status;
  std::vector<v1::Started> started;
  std::map<int, Part> parts;
  std::vector<float> scores;

 private:
  auto Open(Bench* bench, const v1::GenerateRequest& request) {
    return bench->stub->Generate(context_.get(), request);
  }
  auto Open(Bench* bench, const v1::ChatRequest& request) {
    return bench->stub->Chat(context_.get(), request);
  }

  void Take(const v1::GenerateResponse& response) {
    position.Take(response);
    Keep(response);
    tokens_ += response.delta().token_ids_size();
    ++responses_;
  }

  void Keep(const v1::GenerateResponse& response) {
    if (response.has_started()) started.push_back(response.started());
    scores.insert(scores.end(), response.scores().logprobs().begin(),
                  response.scores().logprobs().end());
    Part& part = parts[response.index()];
    const v1::Delta& delta = response.delta();
    part.text += delta.text();
    part.reasoning += delta.reasoning();
    part.ids.insert(part.ids.end(), delta.token_ids().begin(), delta.token_ids().end());
    part.logprobs.insert(part.logprobs.end(), delta.logprobs().begin(), delta.logprobs().end());
    part.tops += delta.top_size();
    for (const v1::ToolCallDelta& call : delta.tool_calls()) {
      if (!call.name().empty()) part.calls.push_back(call.name());
      part.arguments += call.arguments();
    }
    if (!response.has_complete()) return;
    part.complete = response.complete();
    part.completed = true;
  }

  std::unique_ptr<grpc::ClientContext> context_;
  std::atomic<int> responses_{0}, tokens_{0};
  std::thread thread_;
};

void CheckEqual(const Client& got, const Client& want) {
  CHECK(got.status.error_message() == "");
  REQUIRE(got.status.ok());
  CHECK(got.scores == want.scores);
  REQUIRE(got.parts.size() == want.parts.size());
  for (const auto& [index, part] : want.parts) {
    INFO("choice " << index);
    const Part& other = got.parts.at(index);
    CHECK(other.text == part.text);
    CHECK(other.reasoning == part.reasoning);
    CHECK(other.calls == part.calls);
    CHECK(other.arguments == part.arguments);
    CHECK(other.ids == part.ids);
    CHECK(other.logprobs == part.logprobs);
    CHECK(other.tops == part.tops);
    CHECK(other.completed);
    CHECK(other.complete.finish_reason() == part.complete.finish_reason());
    CHECK(other.complete.stop_string() == part.complete.stop_string());
    CHECK(other.complete.seed() == part.complete.seed());
    CHECK(other.complete.usage().output_tokens() == part.complete.usage().output_tokens());
  }
}

// The request undisturbed, and with its front end dying after each token of the fake's script.
template <typename Request>
void CheckEveryCut(Bench* bench, const FakeScript& script, const Request& request) {
  bench->engine->set_script(script);
  Client want;
  want.Run(bench, request);
  REQUIRE(want.status.ok());
  const int choices = static_cast<int>(want.parts.size());
  const int length = static_cast<int>(script.tokens.size());
  for (int cut = 0; cut <= length; ++cut) {
    INFO("after " << cut << " of " << length << " tokens");
    FakeScript hanging = script;
    hanging.hang_at = cut;
    bench->engine->set_script(hanging);
    const int before = bench->engine->written();
    Client client;
    client.Start(bench, request);
    REQUIRE(Eventually([&] { return client.responses() > 0; }));
    Eventually([&] { return bench->engine->written() - before >= cut * choices; },
               milliseconds(cut == 0 ? 0 : 200));  // some stop before the cut
    std::this_thread::sleep_for(milliseconds(10));
    bench->engine->set_script(script);
    bench->Restart();
    client.End();
    if (!client.status.ok()) {
      CHECK(client.status.error_code() == StatusCode::UNAVAILABLE);
      client.Run(bench, request);
      CHECK(client.started.size() == 2);
      for (const v1::Started& started : client.started) {
        CHECK(started.request_id() == client.started[0].request_id());
        CHECK(started.seed() == client.started[0].seed());
      }
    }
    CheckEqual(client, want);
  }
}

v1::GenerateRequest Seeded(const std::string& text, int max_tokens) {
  v1::GenerateRequest request = TextRequest(text, max_tokens);
  request.mutable_sampling()->set_seed(5);
  return request;
}

}  // namespace

TEST_CASE("resume: a front end dying after any token leaves no trace in the text") {
  Bench bench;
  v1::GenerateRequest request = Seeded("x", 100);
  request.mutable_sampling()->set_logprobs(2);
  CheckEveryCut(&bench, Saying(kText), request);
  const engine::v1::GenerateRequest asked = bench.engine->last_request();
  CHECK(asked.seed() == 5);
  CHECK(asked.honour().m() == 84);
  CHECK(asked.committed_ids_size() > 0);
}

TEST_CASE("resume: stop strings that are under way, found, or come to nothing") {
  Bench bench;
  v1::GenerateRequest request = Seeded("x", 100);
  v1::Sampling* sampling = request.mutable_sampling();
  sampling->set_logprobs(1);
  sampling->add_stop("DEF");
  sampling->add_stop("bcd!");
  sampling->set_include_stop(GENERATE(false, true));
  CheckEveryCut(&bench,
                Saying("aDEbcdDabc\xc3\xa9"
                       "DEFgh"),
                request);
}

TEST_CASE("resume: tokens of several bytes that are cut by what is held back") {
  Bench bench;
  v1::GenerateRequest request = Seeded("x", 100);
  request.mutable_sampling()->add_stop("</s");
  FakeScript script = Saying("a<b</t</");
  script.tokens.insert(script.tokens.begin() + 2, kUser);  // special: no text
  CheckEveryCut(&bench, script, request);
}

TEST_CASE("resume: choices each from where they were") {
  Bench bench;
  v1::GenerateRequest request = Seeded("x", 100);
  request.mutable_sampling()->set_n(3);
  request.mutable_sampling()->set_logprobs(0);
  CheckEveryCut(&bench, Saying(kText), request);
}

TEST_CASE("resume: choices that are complete are not asked for again") {
  Bench bench;
  bench.engine->set_script(Saying(kText));
  v1::GenerateRequest request = Seeded("x", 100);
  request.mutable_sampling()->set_n(3);
  Client want, client;
  want.Run(&bench, request);
  REQUIRE(want.status.ok());
  client.Run(&bench, request);
  v1::Resume resume = client.position.resume();
  const int asked = bench.engine->started();
  const int again = GENERATE(0, 1, 2, 3);  // of which only the end is missing; 3: none
  INFO("choice " << again);
  if (again < 3) resume.mutable_choices(again)->set_complete(false);
  bench.Restart();
  *request.mutable_resume() = resume;
  const Heard heard = bench.Generate(request);
  CHECK(heard.status.ok());
  CHECK(heard.text.empty());
  CHECK(heard.ids.empty());
  CHECK(heard.completed == (again < 3));
  CHECK(bench.engine->started() - asked == (again < 3 ? 1 : 0));
  if (again == 3) return;
  CHECK_FALSE(bench.engine->last_request().has_place());  // the queue is looked at for it
  CHECK(bench.engine->last_request().further_choices() == 0);
  CHECK(heard.complete.seed() == 5u + static_cast<uint64_t>(again));
  CHECK(heard.complete.resumes() == 1);
  CHECK(heard.complete.usage().output_tokens() == static_cast<int>(kText.size()));
}

TEST_CASE("resume: reasoning and tool calls of a chat") {
  Bench bench;
  engine::v1::EngineInfo info = bench.engine->info();
  info.set_max_context(4096);
  bench.engine->set_info(info);
  REQUIRE(Eventually([&] {
    v1::ModelInfo model;
    grpc::ClientContext context;
    bench.stub->GetModelInfo(&context, {}, &model);
    return model.max_context() == 4096;
  }));
  v1::ChatRequest request = UserRequest("weather?", 500);
  request.set_thinking(true);
  v1::Tool* tool = request.add_tools();
  tool->set_name("f");
  tool->set_parameters(R"({"type": "object", "properties": {"a": {"type": "string"}}})");
  FakeScript script = Saying("h\xc3\xa9");
  script.tokens.push_back(kEndThink);
  for (const int32_t id :
       Bytes("so\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">\n"
             "<｜DSML｜parameter name=\"a\" string=\"true\">ü</｜DSML｜parameter>\n"
             "</｜DSML｜invoke>\n</｜DSML｜function_calls>")) {
    script.tokens.push_back(id);
  }
  script.tokens.push_back(kEos);
  Client want;
  bench.engine->set_script(script);
  want.Run(&bench, request);
  REQUIRE(want.parts[0].calls == std::vector<std::string>{"f"});
  CHECK(want.parts[0].reasoning == "h\xc3\xa9");
  CHECK(want.parts[0].arguments == "{\"a\": \"ü\"}");
  request.mutable_sampling()->set_seed(want.parts[0].complete.seed());
  // Some cuts: in a character of the reasoning, between the parts, in a mark, in the arguments.
  for (const int cut : {1, 2, 3, 4, 7, 20, 60, 70, 120, 130, 150}) {
    if (cut >= static_cast<int>(script.tokens.size())) break;
    INFO("after " << cut);
    FakeScript hanging = script;
    hanging.hang_at = cut;
    bench.engine->set_script(hanging);
    const int before = bench.engine->written();
    Client client;
    client.Start(&bench, request);
    REQUIRE(Eventually([&] { return bench.engine->written() - before >= cut; }));
    std::this_thread::sleep_for(milliseconds(10));
    bench.engine->set_script(script);
    bench.Restart();
    client.End();
    client.Run(&bench, request);
    CheckEqual(client, want);
  }
}

TEST_CASE("resume: scores go on behind those that came") {
  Bench bench;
  FakeScript script;
  script.score_run = 4;
  script.hang_at_score = 8;
  bench.engine->set_script(script);
  v1::GenerateRequest request = Seeded("twenty tokens of te", GENERATE(0, 5));  // and BOS
  request.set_logprobs_from(1);
  Client client;
  client.Start(&bench, request);
  REQUIRE(Eventually([&] { return client.responses() == 3; }));
  script.hang_at_score = -1;
  bench.engine->set_script(script);
  bench.Restart();
  client.End();
  CHECK(client.scores.size() == 8);
  client.Run(&bench, request);
  CHECK(bench.engine->last_request().logprobs_from() == 9);
  Client want;
  want.Run(&bench, request);
  CheckEqual(client, want);
}

TEST_CASE("resume: a drawn seed is the token's and further resumes go on") {
  Bench bench;
  const v1::GenerateRequest request = TextRequest("x", 100);
  Client client;
  for (const int cut : {3, 5, 9}) {
    bench.engine->set_script(Saying(kText, cut));
    client.Start(&bench, request);
    REQUIRE(Eventually([&] { return client.tokens() == cut; }));
    bench.Restart();
    client.End();
  }
  bench.engine->set_script(Saying(kText));
  client.Run(&bench, request);
  REQUIRE(client.status.ok());
  CHECK(client.parts[0].text == kText);
  CHECK(client.parts[0].complete.resumes() == 3);
  CHECK(client.parts[0].complete.seed() == client.started[0].seed());
  for (const auto& asked : bench.engine->requests())
    CHECK(asked.seed() == client.started[0].seed());
}

TEST_CASE("resume: an engine that dies afterwards is replayed as ever") {
  Bench bench;
  bench.engine->set_script(Saying(kText, 3));
  Client client;
  client.Start(&bench, Seeded("x", 100));
  REQUIRE(Eventually([&] { return client.tokens() == 3; }));
  bench.engine->set_script(Saying(kText, 7));
  bench.Restart();
  client.End();
  client.Start(&bench, Seeded("x", 100));
  REQUIRE(Eventually([&] { return client.tokens() == 7; }));
  Replace(&bench, Saying(kText));
  client.End();
  REQUIRE(client.status.ok());
  CHECK(client.parts[0].text == kText);
  CHECK(client.parts[0].complete.replays() == 1);
  CHECK(client.parts[0].complete.resumes() == 1);
}

TEST_CASE("resume: a stream that still runs gives way to the one that resumes it") {
  Bench bench;
  bench.engine->set_script(Saying(kText, 3));
  Client first, second, other;
  v1::GenerateRequest request = Seeded("x", 100);
  request.set_request_id("mine");
  first.Start(&bench, request);
  other.Start(&bench, request);  // another request with the same id, which runs on
  REQUIRE(Eventually([&] { return first.tokens() == 3 && other.tokens() == 3; }));
  second.position = first.position;
  bench.engine->set_script(Saying(kText));
  second.Run(&bench, request);
  first.End();
  CHECK(second.status.ok());
  CHECK(first.parts[0].text + second.parts[0].text == kText);
  CHECK(first.status.error_code() == StatusCode::ABORTED);
  CHECK_THAT(first.status.error_message(), Contains("resumed it in another stream"));
  CHECK(Eventually([&] { return bench.app->running() == 1; }));
  bench.Restart();
}

TEST_CASE("resume: begins anew where nothing was told") {
  Bench bench;
  FakeScript hanging = Saying(kText, 0);
  bench.engine->set_script(hanging);
  Client client;
  client.Start(&bench, Seeded("x", 100));
  REQUIRE(Eventually([&] { return client.responses() == 1; }));
  FakeScript other = Saying(kText);
  other.cannot_honour = true;
  bench.engine->set_script(other);
  bench.Restart();
  client.End();
  client.Run(&bench, Seeded("x", 100));
  CHECK(client.status.ok());
  CHECK(client.parts[0].text == kText);
}

TEST_CASE("resume: what does not fit is refused with the field that does not") {
  Bench bench;
  bench.engine->set_script(Saying(kText));
  v1::GenerateRequest request = Seeded("x", 100);
  request.set_request_id("mine");
  Client client;
  client.Run(&bench, request);
  REQUIRE(client.status.ok());
  *request.mutable_resume() = client.position.resume();
  request.mutable_resume()->mutable_choices(0)->mutable_token_ids()->Truncate(3);
  request.mutable_resume()->mutable_choices(0)->set_text_bytes(3);
  request.mutable_resume()->mutable_choices(0)->set_complete(false);
  REQUIRE(bench.Generate(request).status.ok());
  const auto refused = [&](const std::function<void(v1::GenerateRequest*)>& change) {
    v1::GenerateRequest changed = request;
    change(&changed);
    const grpc::Status status = bench.Generate(changed).status;
    CHECK(status.error_code() == StatusCode::INVALID_ARGUMENT);
    return status.error_message();
  };
  CHECK_THAT(refused([](auto* r) { r->set_text("y"); }), Contains("the prompt must be as in"));
  CHECK_THAT(refused([](auto* r) { r->mutable_sampling()->set_temperature(0.5f); }),
             Contains("sampling must be as in the request of resume.token"));
  CHECK_THAT(refused([](auto* r) { r->mutable_sampling()->set_max_tokens(50); }),
             Contains("sampling must"));
  CHECK_THAT(refused([](auto* r) { r->mutable_sampling()->add_stop("x"); }),
             Contains("sampling must"));
  CHECK_THAT(refused([](auto* r) { r->mutable_sampling()->set_seed(6); }),
             Contains("sampling.seed must be that of resume.token, 5, or unset; got 6"));
  CHECK_THAT(refused([](auto* r) { r->mutable_selection()->set_mode("exact"); }),
             Contains("selection must"));
  CHECK_THAT(refused([](auto* r) { r->set_logprobs_from(1); }), Contains("logprobs_from and"));
  CHECK_THAT(refused([](auto* r) { r->set_request_id("other"); }),
             Contains("request_id must be that of resume.token, 'mine', or empty; got 'other'"));
  CHECK_THAT(refused([](auto* r) { r->mutable_resume()->clear_token(); }),
             Contains("resume.token must be the resume_token of a Started; got 0 bytes"));
  CHECK_THAT(refused([](auto* r) { r->mutable_resume()->mutable_token()->at(0) = 9; }),
             Contains("resume.token must be of version 1; got version 9"));
  CHECK_THAT(refused([](auto* r) { r->mutable_resume()->mutable_token()->at(30) ^= 1; }),
             Contains("resume.token must be as it came: the checksum"));
  CHECK_THAT(refused([](auto* r) { r->mutable_resume()->mutable_token()->pop_back(); }),
             Contains("resume.token must be as it came"));
  CHECK_THAT(refused([](auto* r) {
               resume::v1::Record record;
               REQUIRE(DecodeResumeToken(r->resume().token(), &record).ok());
               record.set_request_id("a\nb");
               r->clear_request_id();
               r->mutable_resume()->set_token(EncodeResumeToken(record));
             }),
             Contains("the request id in resume.token must be at most 128 visible ASCII"));
  CHECK_THAT(refused([](auto* r) { r->mutable_resume()->add_choices(); }),
             Contains("resume.choices must be at most sampling.n, 1; got 2"));
  CHECK_THAT(refused([](auto* r) { r->mutable_resume()->set_scores(1); }),
             Contains("resume.scores must be from 0 to 0; got 1"));
  const auto choice = [&](const std::function<void(v1::ResumedChoice*)>& change) {
    return refused([&](auto* r) { change(r->mutable_resume()->mutable_choices(0)); });
  };
  CHECK_THAT(choice([](auto* c) { c->add_token_ids(999); }),
             Contains("resume.choices[0].token_ids[3] must be a token id in [0, 262); got 999"));
  CHECK_THAT(choice([](auto* c) { c->add_token_ids(kEos); }),
             Contains("resume.choices[0].token_ids[3] must not be a stop token"));
  CHECK_THAT(choice([](auto* c) {
               for (int i = 0; i < 100; ++i) c->add_token_ids('a');
             }),
             Contains("resume.choices[0].token_ids must be at most max_tokens, 100; got 103"));
  CHECK_THAT(choice([](auto* c) { c->set_text_bytes(2); }),
             Contains("resume.choices[0].text_bytes must be at least 3, the text of its "
                      "token_ids; got 2"));
  CHECK_THAT(choice([](auto* c) { c->set_text_bytes(-1); }), Contains("must be at least 0"));
  CHECK_THAT(choice([](auto* c) { c->set_text_bytes(5); }),
             Contains("text_bytes must be the text of whole messages"));
  CHECK_THAT(choice([](auto* c) { c->set_text_bytes(1000); }), Contains("text_bytes must"));
  // Another model, or another placement.
  engine::v1::EngineInfo info = bench.engine->info();
  info.mutable_defaults()->set_placement("rotated b=1 G=3");
  bench.engine->set_info(info);
  REQUIRE(Eventually([&] {
    v1::ServerInfo server;
    grpc::ClientContext context;
    bench.stub->GetServerInfo(&context, {}, &server);
    return server.placement() == "rotated b=1 G=3" && bench.app->ready();
  }));
  std::this_thread::sleep_for(milliseconds(1200));  // the next look at the engine
  CHECK_THAT(refused([](auto*) {}),
             Contains("resume.token must be of a stream that this engine can go on with; got one "
                      "of placement 'rotated b=1 G=4', and here it is 'rotated b=1 G=3'"));
}

TEST_CASE("request ids: two requests with one id run side by side and Abort ends both") {
  Bench bench;
  FakeScript script;
  script.delay = milliseconds(2);
  bench.engine->set_script(script);
  v1::GenerateRequest request = TextRequest("x", 900);
  request.set_request_id("same");
  Call first(&bench, request), second(&bench, request);
  REQUIRE(Eventually([&] { return first.tokens() > 2 && second.tokens() > 2; }));
  grpc::ClientContext context;
  v1::AbortRequest abort;
  abort.set_request_id("same");
  v1::AbortResponse response;
  REQUIRE(bench.stub->Abort(&context, abort, &response).ok());
  CHECK(first.End().status.error_code() == StatusCode::CANCELLED);
  CHECK(second.End().status.error_code() == StatusCode::CANCELLED);
  CHECK(Eventually([&] { return bench.engine->running() == 0; }));
}

}  // namespace weft::server
