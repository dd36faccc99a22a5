#include "engine/comm/communicator.h"

#include <catch2/catch.hpp>
#include <functional>
#include <thread>

#include "tests/comm/collective_checks.h"

using weft::CommError;
using weft::Communicator;
using weft::Reduce;
using Clock = std::chrono::steady_clock;
using Group = std::vector<std::unique_ptr<Communicator>>;

namespace {

// Runs `body` for every rank at once; what each threw ("" for nothing), by rank.
std::vector<std::string> OnRanks(const Group& group,
                                 const std::function<void(Communicator&)>& body) {
  std::vector<std::string> thrown(group.size());
  std::vector<std::thread> threads;
  for (size_t r = 0; r < group.size(); ++r) {
    threads.emplace_back([&, r] {
      try {
        body(*group[r]);
      } catch (const std::exception& e) {
        thrown[r] = e.what();
      }
    });
  }
  for (std::thread& t : threads) t.join();
  return thrown;
}

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

TEST_CASE("thread communicators do every collective, for any number of ranks") {
  const int size = GENERATE(1, 2, 3, 5, 7);
  CAPTURE(size);
  const Group group = weft::MakeThreadCommunicators(size);
  const std::vector<std::string> thrown = OnRanks(group, weft_test::CheckCollectives);
  CHECK(thrown == std::vector<std::string>(group.size()));
}

TEST_CASE("the test's terms tell orders apart") {
  // Without this, the checks of the order would check nothing.
  int differing = 0;
  for (size_t i = 0; i < 100; ++i) {
    float up = weft_test::Term(0, i), down = weft_test::Term(3, i);
    for (int r = 1; r < 4; ++r) up += weft_test::Term(r, i);
    for (int r = 2; r >= 0; --r) down += weft_test::Term(r, i);
    differing += up != down;
  }
  CHECK(differing > 50);
}

TEST_CASE("ranks of different speed stay in step") {
  const Group group = weft::MakeThreadCommunicators(4);
  const auto thrown = OnRanks(group, [](Communicator& comm) {
    for (int i = 0; i < 40; ++i) {
      if (i % 4 == comm.rank()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      weft_test::CheckAllGather(comm, static_cast<size_t>(i), true);
      weft_test::CheckAllToAll(comm, static_cast<size_t>(i));
    }
  });
  CHECK(thrown == std::vector<std::string>(4));
}

TEST_CASE("Abort wakes every waiting rank with its reason") {
  const Group group = weft::MakeThreadCommunicators(4);
  const auto start = Clock::now();
  const auto thrown = OnRanks(group, [](Communicator& comm) {
    if (comm.rank() == 2) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      comm.Abort("rank 2 is out of memory");
      comm.Abort("a later reason is not heard");
    }
    int32_t value = 1;
    comm.AllReduce(&value, 1, Reduce::kSumI32);
  });
  CHECK(SecondsSince(start) < 2);
  CHECK(thrown == std::vector<std::string>(4, "rank 2 is out of memory"));
}

TEST_CASE("Abort comes from any thread and ends all later collectives") {
  const Group group = weft::MakeThreadCommunicators(2);
  std::thread other([&] { group[0]->Abort("stop"); });
  other.join();
  float value = 0;
  CHECK_THROWS_WITH(group[0]->AllReduce(&value, 1, Reduce::kSumF32), "stop");
  CHECK_THROWS_WITH(group[1]->Broadcast(&value, 4, 0), "stop");
}

TEST_CASE("the deadline names the ranks that did not come, to all") {
  const Group group = weft::MakeThreadCommunicators(4);
  const auto start = Clock::now();
  const auto thrown = OnRanks(group, [](Communicator& comm) {
    if (comm.rank() == 1 || comm.rank() == 3) return;
    if (comm.rank() == 0) comm.SetDeadline(std::chrono::milliseconds(100));
    float value = 0;
    comm.AllReduce(&value, 1, Reduce::kSumF32);
  });
  CHECK(SecondsSince(start) >= 0.1);
  CHECK(SecondsSince(start) < 2);
  const std::string want = "rank 0 passed the deadline in AllReduce, waiting for rank(s) 1, 3";
  CHECK(thrown == std::vector<std::string>{want, "", want, ""});
}

TEST_CASE("ranks that call different operations or sizes are told, not hung") {
  Group group = weft::MakeThreadCommunicators(3);
  auto thrown = OnRanks(group, [](Communicator& comm) {
    std::vector<float> data(8);
    if (comm.rank() == 1) {
      comm.Broadcast(data.data(), 32, 0);
    } else {
      comm.AllReduce(data.data(), 8, Reduce::kSumF32);
    }
  });
  for (const std::string& text : thrown)
    CHECK_THAT(text, Catch::StartsWith("ranks are out of step"));

  group = weft::MakeThreadCommunicators(2);
  thrown = OnRanks(group, [](Communicator& comm) {
    std::vector<float> data(8);
    comm.AllReduce(data.data(), comm.rank() == 0 ? 8 : 4, Reduce::kSumF32);
  });
  for (const std::string& text : thrown) CHECK_THAT(text, Catch::Contains("expects"));
}

TEST_CASE("wrong arguments are refused before anyone waits") {
  const Group group = weft::MakeThreadCommunicators(2);
  char data[16] = {};
  CHECK_THROWS_WITH(group[0]->AllGather(data, data, std::vector<size_t>{1, 2, 3}),
                    "AllGather needs one block per rank (2), got 3");
  CHECK_THROWS_WITH(group[0]->Broadcast(data, 4, 2), "Broadcast: root must be in 0..1, got 2");
  CHECK_THROWS_WITH(group[0]->AllReduce(nullptr, 4, Reduce::kSumF32),
                    "AllReduce: data is null, but holds 16 bytes");
  CHECK_THROWS_AS(group[0]->AllToAll(data, {1, 1}, data, {2, 1}), CommError);
  CHECK_THROWS_AS(weft::MakeThreadCommunicators(0), CommError);
}

TEST_CASE("many ranks have smaller slots and still exchange everything") {
  const Group group = weft::MakeThreadCommunicators(40);
  const auto thrown = OnRanks(group, [](Communicator& comm) {
    weft_test::CheckAllGather(comm, 2000, true);
    weft_test::CheckAllToAll(comm, 700);
    weft_test::CheckReductions(comm, 3000);
  });
  CHECK(thrown == std::vector<std::string>(40));
}
