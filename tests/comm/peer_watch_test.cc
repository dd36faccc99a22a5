#include "engine/control/peer_watch.h"

#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <future>

using weft::PeerWatch;
using namespace std::chrono_literals;

namespace {

struct Pair {
  Pair() { REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0); }
  ~Pair() {
    for (const int fd : fds) close(fd);
  }
  int fds[2];
};

}  // namespace

TEST_CASE("a peer watch names the first socket that hangs up, once") {
  Pair a, b;
  std::promise<size_t> gone;
  std::atomic<int> calls = 0;
  const PeerWatch watch({a.fds[0], b.fds[0]}, [&](size_t i) {
    if (calls++ == 0) gone.set_value(i);
  });
  auto future = gone.get_future();
  // Data that nobody reads is no reason.
  REQUIRE(write(a.fds[1], "x", 1) == 1);
  CHECK(future.wait_for(50ms) == std::future_status::timeout);
  shutdown(b.fds[1], SHUT_RDWR);
  REQUIRE(future.wait_for(10s) == std::future_status::ready);
  CHECK(future.get() == 1);
  shutdown(a.fds[1], SHUT_RDWR);
  std::this_thread::sleep_for(50ms);
  CHECK(calls == 1);
}

TEST_CASE("a peer watch that ends calls nothing") {
  Pair pair;
  std::atomic<int> calls = 0;
  {
    const PeerWatch watch({pair.fds[0]}, [&](size_t) { ++calls; });
  }
  shutdown(pair.fds[1], SHUT_RDWR);
  std::this_thread::sleep_for(20ms);
  CHECK(calls == 0);
}
