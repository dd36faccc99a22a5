#include "engine/control/control.h"

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <functional>
#include <thread>

#include "tests/comm/raw_peer.h"

using Catch::Contains;
using weft::ControlClient;
using weft::ControlError;
using weft::ControlServer;
using weft::Frame;
using weft::FrameType;
using weft::Settings;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using weft_test::RawPeer;

namespace {

const Settings kSettings = {{"model", "demo"}, {"kv_dtype", "bf16"}};

// What `body` threw, "" for nothing.
std::string Thrown(const std::function<void()>& body) {
  try {
    body();
  } catch (const std::exception& e) {
    return e.what();
  }
  return "";
}

// Workers 1 .. as threads: connect with their settings, then run `body`. Join tells what they
// threw.
class Workers {
 public:
  using Body = std::function<void(int rank, ControlClient&)>;
  Workers(const std::string& address, std::vector<Settings> settings, Body body = {})
      : thrown_(settings.size()) {
    for (size_t i = 0; i < settings.size(); ++i) {
      threads_.emplace_back([this, address, i, mine = settings[i], body] {
        thrown_[i] = Thrown([&] {
          const int rank = static_cast<int>(i) + 1;
          ControlClient client(address, rank, mine, 10s);
          if (body) body(rank, client);
        });
      });
    }
  }
  ~Workers() { Join(); }
  const std::vector<std::string>& Join() {
    for (std::thread& t : threads_) {
      if (t.joinable()) t.join();
    }
    return thrown_;
  }

 private:
  std::vector<std::string> thrown_;
  std::vector<std::thread> threads_;
};

bool Readable(int fd, std::chrono::milliseconds timeout) {
  pollfd p{fd, POLLIN, 0};
  return poll(&p, 1, static_cast<int>(timeout.count())) > 0;
}

}  // namespace

TEST_CASE("ranks meet and frames of every size arrive in order") {
  ControlServer server("127.0.0.1");
  std::string big(10 << 20, '\0');
  for (size_t i = 0; i < big.size(); ++i) big[i] = static_cast<char>(i * 31 + i / 997);
  Workers workers(server.Address(), {kSettings, kSettings, kSettings},
                  [&](int, ControlClient& client) {
                    for (const std::string& want : {std::string(), big, std::string("plan")}) {
                      const Frame frame = client.Receive();
                      if (frame.type != FrameType::kPlan || frame.payload != want) {
                        throw std::runtime_error("wrong frame");
                      }
                    }
                    if (client.Receive().type != FrameType::kShutdown) {
                      throw std::runtime_error("no shutdown");
                    }
                  });
  server.Accept(4, kSettings, 10s);
  CHECK(server.Descriptors().size() == 3);
  CHECK_FALSE(server.DeadRank());
  server.Send({FrameType::kPlan, ""});
  server.Send({FrameType::kPlan, big});
  server.Send({FrameType::kPlan, "plan"});
  server.Send({FrameType::kShutdown, ""});
  CHECK(workers.Join() == std::vector<std::string>(3));
}

TEST_CASE("a single rank needs no workers") {
  ControlServer server("127.0.0.1");
  server.Accept(1, kSettings, 0ms);
  server.Send({FrameType::kPlan, "x"});
  CHECK(server.Descriptors().empty());
  CHECK_FALSE(server.DeadRank());
}

TEST_CASE("Disagreement names the key and both values") {
  const Settings base = {{"a", "1"}, {"b", "2"}};
  CHECK(weft::Disagreement(base, base, 3).empty());
  CHECK(weft::Disagreement(base, {{"a", "1"}, {"b", "5"}}, 3) ==
        "ranks disagree on b: rank 0 has '2', rank 3 has '5'");
  CHECK(weft::Disagreement(base, {{"a", "1"}}, 3) ==
        "ranks disagree on b: rank 0 has '2', rank 3 has none");
  CHECK(weft::Disagreement({{"a", "1"}}, base, 3) ==
        "ranks disagree on b: rank 0 has none, rank 3 has '2'");
  CHECK_THAT(weft::Disagreement(base, {{"b", "2"}, {"a", "1"}}, 3), Contains("'a'"));
}

TEST_CASE("rank 0 decides from what the ranks tell, and all hear what or why not") {
  const auto run = [](const weft::ControlServer::Decide& decide, std::string* thrown) {
    ControlServer server("127.0.0.1");
    std::vector<std::string> heard(3);
    std::vector<std::thread> threads;
    for (int rank = 1; rank <= 3; ++rank) {
      threads.emplace_back([&, rank] {
        auto& text = heard[static_cast<size_t>(rank - 1)];
        try {
          ControlClient client(server.Address(), rank, kSettings, 10s,
                               {{"host", "h" + std::to_string(rank)}, {"empty", ""}});
          text = client.welcome();
        } catch (const ControlError& error) {
          text = error.what();
        }
      });
    }
    *thrown = Thrown([&] { server.Accept(4, kSettings, 10s, decide); });
    for (std::thread& t : threads) t.join();
    return heard;
  };
  std::string thrown;
  const auto join = [](const std::vector<Settings>& facts) {
    std::string text;
    for (const Settings& f : facts) text += f.at(0).second + f.at(1).first + " ";
    return text;
  };
  CHECK(run(join, &thrown) == std::vector<std::string>(3, "h1empty h2empty h3empty "));
  CHECK(thrown.empty());
  const auto refuse = [](const std::vector<Settings>& facts) -> std::string {
    throw std::runtime_error("rank 2 on " + facts[1][0].second + " has no GPU");
  };
  CHECK(run(refuse, &thrown) == std::vector<std::string>(3, "rank 2 on h2 has no GPU"));
  CHECK(thrown == "rank 2 on h2 has no GPU");
}

TEST_CASE("every rank hears of a disagreement, with both values") {
  ControlServer server("127.0.0.1");
  Settings other = kSettings;
  other[1].second = "fp8";
  Workers workers(server.Address(), {kSettings, other, kSettings});
  const std::string want = "ranks disagree on kv_dtype: rank 0 has 'bf16', rank 2 has 'fp8'";
  CHECK_THROWS_WITH(server.Accept(4, kSettings, 10s), want);
  CHECK(workers.Join() == std::vector<std::string>(3, want));
}

TEST_CASE("a time-out names the missing ranks, also to those that came") {
  ControlServer server("127.0.0.1");
  Workers workers(server.Address(), {kSettings});
  const std::string want = "no hello from rank(s) 2, 3 within 300 ms";
  CHECK_THROWS_WITH(server.Accept(4, kSettings, 300ms), want);
  CHECK(workers.Join() == std::vector<std::string>{want});
}

TEST_CASE("a rank that dies during start-up is named at once") {
  ControlServer server("127.0.0.1");
  RawPeer peer(server.Address());
  peer.Send(weft_test::HelloFrame(server.Address(), 2, kSettings));
  std::thread closer([&] {
    std::this_thread::sleep_for(50ms);
    peer.Close();
  });
  const auto start = Clock::now();
  CHECK_THROWS_WITH(server.Accept(4, kSettings, 20s), "rank 2 hung up during start-up");
  CHECK(Clock::now() - start < 5s);
  closer.join();
}

TEST_CASE("strangers are turned away and hold nobody up") {
  ControlServer server("127.0.0.1");
  const std::string address = server.Address();
  RawPeer silent(address), http(address), huge(address), half(address), out_of_range(address);
  http.Send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  huge.Send(weft_test::FrameBytes(200 << 20, 1, weft::kControlVersion, ""));
  half.Send(weft_test::HelloFrame(address, 1, kSettings).substr(0, 20));
  out_of_range.Send(weft_test::HelloFrame(address, 7, kSettings));
  RawPeer bad_hello(address);
  bad_hello.Send(weft_test::FrameBytes(3, 1, weft::kControlVersion, "abc"));
  Workers workers(address, {kSettings, kSettings});
  const auto start = Clock::now();
  server.Accept(3, kSettings, 10s);
  CHECK(Clock::now() - start < 5s);
  CHECK(workers.Join() == std::vector<std::string>(2));
}

TEST_CASE("a wrong token, a second rank 1 and another version are refused, with the reason") {
  ControlServer server("127.0.0.1");
  const std::string address = server.Address();
  std::string accept_thrown;
  std::thread acceptor(
      [&] { accept_thrown = Thrown([&] { server.Accept(3, kSettings, 1500ms); }); });
  RawPeer first(address);
  first.Send(weft_test::HelloFrame(address, 1, kSettings));
  std::string wrong = address;
  wrong.back() = wrong.back() == '0' ? '1' : '0';
  CHECK_THAT(Thrown([&] { ControlClient(wrong, 2, kSettings, 5s); }),
             Contains("its token is wrong"));
  CHECK_THAT(Thrown([&] { ControlClient(address, 1, kSettings, 5s); }),
             Contains("rank 1 is already here"));
  CHECK_THAT(Thrown([&] { ControlClient(address, 3, kSettings, 5s); }), Contains("ranks 1..2"));
  RawPeer newer(address);
  newer.Send(weft_test::FrameBytes(0, 1, weft::kControlVersion + 1, ""));
  CHECK_THAT(
      newer.ReceiveAll(),
      Contains("the peer speaks control version " + std::to_string(weft::kControlVersion + 1) +
               ", this program version " + std::to_string(weft::kControlVersion)));
  acceptor.join();
  CHECK_THAT(accept_thrown,
             Catch::StartsWith("no hello from rank(s) 2 within 1500 ms; turned away"));
}

TEST_CASE("tokens are long and differ") {
  const std::string a = ControlServer("127.0.0.1").Address();
  const std::string b = ControlServer("127.0.0.1").Address();
  const auto token = [](const std::string& s) { return s.substr(s.find(' ') + 1); };
  CHECK(token(a).size() == 32);
  CHECK(token(a) != token(b));
}

TEST_CASE("on all interfaces the address names this machine, and is reached") {
  ControlServer server("0.0.0.0");
  CHECK_THAT(server.Address(), !Catch::StartsWith("0.0.0.0"));
  Workers workers(server.Address(), {kSettings});
  server.Accept(2, kSettings, 10s);
  CHECK(workers.Join() == std::vector<std::string>(1));
}

TEST_CASE("a client says whom it cannot reach, and which address it cannot read") {
  std::string address;
  {
    ControlServer server("127.0.0.1");
    address = server.Address();
  }
  CHECK_THAT(Thrown([&] { ControlClient(address, 1, kSettings, 200ms); }),
             Contains("cannot reach rank 0 at 127.0.0.1:") && Contains("refused"));
  CHECK_THAT(Thrown([&] { ControlClient("127.0.0.1", 1, kSettings, 1s); }),
             Contains("'host:port token'"));
  CHECK_THAT(Thrown([&] { ControlServer("no.such.host.invalid"); }), Contains("no.such.host"));
}

TEST_CASE("a client gives up on a rank 0 that never welcomes") {
  ControlServer server("127.0.0.1");  // listens, but nobody accepts
  CHECK_THAT(Thrown([&] { ControlClient(server.Address(), 1, kSettings, 200ms); }),
             Contains("did not welcome rank 1 within 200 ms"));
}

TEST_CASE("a killed worker is seen at once, by poll, DeadRank and Send") {
  ControlServer server("127.0.0.1");
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    try {
      ControlClient client(server.Address(), 2, kSettings, 10s);
      client.Receive();
    } catch (...) {
    }
    _exit(0);
  }
  Workers workers(server.Address(), {kSettings}, [](int, ControlClient& c) { c.Receive(); });
  server.Accept(3, kSettings, 10s);
  CHECK_FALSE(Readable(server.Descriptors()[1], 0ms));
  kill(child, SIGKILL);
  CHECK(Readable(server.Descriptors()[1], 2000ms));
  CHECK(server.DeadRank() == 2);
  CHECK_THROWS_WITH(
      [&] {
        // The first send to a closed socket may still succeed.
        for (int i = 0; i < 3; ++i) server.Send({FrameType::kPlan, "x"});
      }(),
      "rank 2 is gone");
  waitpid(child, nullptr, 0);
  workers.Join();
}

TEST_CASE("Send waits for a slow worker, but not for one that dies meanwhile") {
  ControlServer server("127.0.0.1");
  RawPeer peer(server.Address());
  peer.Send(weft_test::HelloFrame(server.Address(), 1, kSettings));
  server.Accept(2, kSettings, 10s);
  std::thread closer([&] {
    std::this_thread::sleep_for(200ms);
    peer.Close();
  });
  const auto start = Clock::now();
  const std::string thrown = Thrown([&] {
    server.Send({FrameType::kPlan, std::string(100 << 20, 'x')});
  });
  CHECK(thrown == "rank 1 is gone");
  CHECK(Clock::now() - start >= 150ms);
  CHECK(Clock::now() - start < 5s);
  closer.join();
}

TEST_CASE("Receive throws when rank 0 goes within a frame, or speaks another version") {
  const std::string welcome = weft_test::FrameBytes(0, 2, weft::kControlVersion, "");
  const auto receive_after = [&](const std::string& bytes) {
    std::string address;
    const int listener = weft_test::RawListener(&address);
    std::thread rank0([&] { weft_test::AnswerOnce(listener, welcome + bytes); });
    const std::string thrown = Thrown([&] {
      ControlClient client(address, 1, kSettings, 5s);
      client.Receive();
    });
    rank0.join();
    close(listener);
    return thrown;
  };
  CHECK(receive_after("") == "rank 0 is gone: the connection was closed");
  CHECK(receive_after("\x09") == "rank 0 is gone: the connection was closed");
  CHECK(receive_after(weft_test::FrameBytes(9, 4, weft::kControlVersion, "half")) ==
        "rank 0 is gone: the connection was closed");
  CHECK_THAT(
      receive_after(weft_test::FrameBytes(0, 4, 9, "")),
      Contains("control version 9, this program version " + std::to_string(weft::kControlVersion)));
}

TEST_CASE("Receive throws when rank 0 goes") {
  auto server = std::make_unique<ControlServer>("127.0.0.1");
  Workers workers(server->Address(), {kSettings}, [](int, ControlClient& c) { c.Receive(); });
  server->Accept(2, kSettings, 10s);
  server.reset();
  CHECK_THAT(workers.Join()[0], Catch::StartsWith("rank 0 is gone"));
}

TEST_CASE("a frame over the limit is refused before it is sent") {
  ControlServer server("127.0.0.1");
  server.Accept(1, kSettings, 0ms);
  CHECK_THROWS_WITH(server.Send({FrameType::kPlan, std::string((256 << 20) + 1, 'x')}),
                    "a control frame holds at most 268435456 bytes, got 268435457");
}
