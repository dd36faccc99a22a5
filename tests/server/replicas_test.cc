// Several engines at once, and requests that kill theirs.
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>

#include <catch2/catch.hpp>
#include <future>
#include <mutex>

#include "tests/server/replay_bench.h"

namespace weft::server {
namespace {

using Catch::Matchers::Contains;
using grpc::StatusCode;
using std::chrono::milliseconds;

std::future<Heard> Start(Bench* bench, const std::string& text, int max_tokens) {
  return std::async(std::launch::async,
                    [=] { return bench->Generate(TextRequest(text, max_tokens)); });
}

FakeScript Dawdling() {
  FakeScript script;
  script.delay = milliseconds(5);
  return script;
}

TEST_CASE("replicas: requests spread, and those of a dead one move to the others") {
  FakeEngine second;
  Bench bench(300, {second.address()});
  bench.engine->set_script(Dawdling());
  second.set_script(Dawdling());
  // Both are known once two requests at a time go to both.
  REQUIRE(Eventually([&] {
    const int before = bench.engine->started(), before_second = second.started();
    std::future<Heard> call = Start(&bench, "x", 10), other = Start(&bench, "y", 10);
    call.wait();
    other.wait();
    return bench.engine->started() > before && second.started() > before_second;
  }));
  // What has just ended does not count, though the engine was last asked when it ran.
  for (int i = 0; i < 5; ++i) {
    const int before = bench.engine->started(), before_second = second.started();
    std::future<Heard> call = Start(&bench, "x", 30);
    REQUIRE(Eventually([&] { return bench.engine->running() + second.running() == 1; }));
    Start(&bench, "y", 30).wait();
    call.wait();
    CHECK(bench.engine->started() == before + 1);
    CHECK(second.started() == before_second + 1);
  }
  std::vector<std::future<Heard>> calls;
  for (int i = 0; i < 8; ++i) {
    calls.push_back(Start(&bench, std::string(1, static_cast<char>('a' + i)), 200));
    REQUIRE(Eventually([&] { return bench.engine->running() + second.running() == i + 1; }));
  }
  CHECK(bench.engine->running() == 4);
  CHECK(second.running() == 4);
  bench.engine->Kill();
  CHECK(Eventually([&] { return second.running() == 8; }, milliseconds(900)));
  CHECK(bench.app->ready());
  for (auto& call : calls) {
    const Heard heard = call.get();
    CHECK(heard.status.ok());
    CHECK(heard.ids.size() == 200);
  }
  v1::ServerInfo info;
  grpc::ClientContext context;
  REQUIRE(bench.stub->GetServerInfo(&context, {}, &info).ok());
  CHECK(info.replays_total() == 4);
  CHECK(info.engine_restarts_total() == 0);
}

constexpr char kAnyPort[] = "127.0.0.1:0";

void OfThreeRanks(engine::v1::EngineInfo* info) {
  info->mutable_defaults()->set_placement("rotated b=1 G=3");
}

// What is logged while it lives.
class Log {
 public:
  Log() : before_(spdlog::default_logger()) {
    spdlog::set_default_logger(std::make_shared<spdlog::logger>("test", sink_));
  }
  ~Log() { spdlog::set_default_logger(before_); }
  std::string text() const { return sink_->text(); }

 private:
  class Sink final : public spdlog::sinks::base_sink<std::mutex> {
   public:
    std::string text() {
      const std::lock_guard lock(mutex_);
      return text_;
    }

   private:
    void sink_it_(const spdlog::details::log_msg& message) override {
      text_.append(message.payload.data(), message.payload.size()).append("\n");
    }
    void flush_() override {}
    std::string text_;
  };

  const std::shared_ptr<Sink> sink_ = std::make_shared<Sink>();
  const std::shared_ptr<spdlog::logger> before_;
};

size_t CountOf(const std::string& text, const std::string& what) {
  size_t count = 0;
  for (size_t at = text.find(what); at != text.npos; at = text.find(what, at + 1)) ++count;
  return count;
}

TEST_CASE("replicas: a lost request goes to one that can go on with it") {
  const auto change = GENERATE(
      as<FakeEngine::Change>(), OfThreeRanks,
      [](auto* info) { info->mutable_defaults()->set_arithmetic("gpu"); },
      [](auto* info) { info->set_max_context(100); },
      [](auto* info) { info->set_max_index_topk(8); });
  const Log log;
  FakeEngine unlike(kAnyPort, change), like;
  Bench bench(300, {unlike.address(), like.address()});
  REQUIRE(Eventually([&] { return CountOf(log.text(), "ready: tiny") == 3; }));
  bench.engine->set_script(Saying(kText, 3));
  like.set_script(Saying(kText));
  Call call(&bench, TextRequest("x", 500));
  REQUIRE(Eventually([&] { return call.tokens() == 3; }));
  REQUIRE(bench.engine->started() == 1);
  bench.engine->Kill();
  CHECK(call.End().status.ok());
  CHECK(call.End().text == kText);
  CHECK(call.End().complete.replays() == 1);
  CHECK(like.started() == 1);
  CHECK(unlike.started() == 0);
}

TEST_CASE("replicas: a lost request waits for the one that can go on with it") {
  const Log log;
  FakeEngine unlike(kAnyPort, OfThreeRanks);
  Bench bench(300, {unlike.address()});
  REQUIRE(Eventually([&] { return CountOf(log.text(), "ready: tiny") == 2; }));
  bench.engine->set_script(Saying(kText, 3));
  Call call(&bench, TextRequest("x", 500));
  REQUIRE(Eventually([&] { return call.tokens() == 3; }));
  const std::string address = bench.engine->address();
  bench.engine->Kill();
  std::this_thread::sleep_for(milliseconds(700));  // looked at again, and taken by none
  CHECK(bench.app->running() == 1);
  SECTION("which comes back") {
    bench.engine = std::make_unique<FakeEngine>(address);
    bench.engine->set_script(Saying(kText));
    CHECK(call.End().status.ok());
    CHECK(call.End().text == kText);
  }
  SECTION("which comes back as another: at once there is no hope") {
    bench.engine = std::make_unique<FakeEngine>(address, OfThreeRanks);
    CHECK(call.End().status.error_code() == StatusCode::UNAVAILABLE);
    CHECK_THAT(call.End().status.error_message(),
               Contains("the one in its place cannot go on with it (it began under placement "
                        "'rotated b=1 G=4', the engine is of 'rotated b=1 G=3')"));
  }
  CHECK(unlike.started() == 0);
}

TEST_CASE("replicas: one of another model is refused and one of other settings is named") {
  const Log log;
  FakeEngine unlike(kAnyPort, [](auto* info) {
    OfThreeRanks(info);
    info->mutable_defaults()->set_arithmetic("gpu");
  });
  auto other = std::make_unique<FakeEngine>();
  const std::string address = other->address();
  other->Kill();
  Bench bench(300, {address, unlike.address()});
  REQUIRE(Eventually([&] { return CountOf(log.text(), "may get other tokens") == 1; }));
  CHECK_THAT(log.text(), Contains(fmt::format("the engines at {} and {} differ in placement "
                                              "'rotated b=1 G=4' and 'rotated b=1 G=3', "
                                              "arithmetic '' and 'gpu': ",
                                              bench.engine->address(), unlike.address())));
  other = std::make_unique<FakeEngine>(
      address, [](auto* info) { info->mutable_defaults()->set_model("beef"); });
  REQUIRE(Eventually([&] { return CountOf(log.text(), "serves another model") == 1; }));
  CHECK_THAT(log.text(), Contains(fmt::format("the engine serves another model (fingerprint "
                                              "'beef') than the one at {} ('')",
                                              bench.engine->address())));
  CHECK_THAT(log.text(), Contains(fmt::format(" (the engine at {})", address)));
  std::this_thread::sleep_for(milliseconds(1200));  // all were asked once more
  for (int i = 0; i < 6; ++i) CHECK(bench.Generate(TextRequest("x", 2)).status.ok());
  CHECK(other->started() == 0);
  CHECK(CountOf(log.text(), "may get other tokens") == 1);
  CHECK(CountOf(log.text(), "serves another model") == 1);
  // It does not take over when the others are away for a moment, but may when it is started anew.
  bench.engine->Kill();
  unlike.Kill();
  Call call(&bench, TextRequest("x", 2));
  std::this_thread::sleep_for(milliseconds(1200));  // it was asked once more
  CHECK(other->started() == 0);
  other->Kill();
  other = std::make_unique<FakeEngine>(
      address, [](auto* info) { info->mutable_defaults()->set_model("beef"); });
  CHECK(call.End().status.ok());
  CHECK(other->started() == 1);
}

TEST_CASE("a request that kills its engines ends with INTERNAL, and no other does") {
  Bench bench;
  FakeScript hang;
  hang.hang_at = 0;
  bench.engine->set_script(hang);
  std::vector<std::future<Heard>> good;
  for (int i = 0; i < 3; ++i) good.push_back(Start(&bench, "good", 20));
  REQUIRE(Eventually([&] { return bench.engine->running() == 3; }));
  // 900 tokens stand for what crashes an engine as soon as it sees them.
  std::future<Heard> bad = Start(&bench, "bad", 900);
  int deaths = 0;
  while (bad.wait_for(milliseconds(1)) != std::future_status::ready && deaths < 20) {
    if (!bench.engine->was_asked_for(900)) continue;
    const std::string address = bench.engine->address();
    bench.engine->Kill();
    bench.engine = std::make_unique<FakeEngine>(address);
    bench.engine->set_script(Dawdling());
    ++deaths;
  }
  const Heard ended = bad.get();
  CHECK(ended.status.error_code() == StatusCode::INTERNAL);
  CHECK_THAT(ended.status.error_message(), Contains("3 engines in a row died when this request"));
  // Two before it is a suspect, three on trial; this test kills so fast that a death or two may
  // fall between two looks at the engine, and is not counted.
  CHECK(deaths <= 7);
  for (auto& call : good) {
    const Heard heard = call.get();
    CHECK(heard.status.ok());
    CHECK(heard.ids.size() == 20);
  }
}

}  // namespace
}  // namespace weft::server
