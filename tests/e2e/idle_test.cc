// Thousands of open streams that wait: what they take of memory and CPU, and that others do not
// notice them.
#include <grpcpp/grpcpp.h>
#include <sys/resource.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <fstream>

#include "tests/e2e/load.h"

using namespace weft;
using namespace weft::e2e;

namespace {

using std::chrono::milliseconds;
using SteadyClock = std::chrono::steady_clock;

class IdleCall final : public grpc::ClientReadReactor<v1::GenerateResponse> {
 public:
  IdleCall(v1::Inference::Stub* stub, const v1::GenerateRequest& request) : request_(request) {
    stub->async()->Generate(&context_, &request_, this);
    StartRead(&response_);
    StartCall();
  }
  void Cancel() { context_.TryCancel(); }
  bool started() const { return started_; }
  bool done() const { return done_; }
  const grpc::Status& status() const { return status_; }  // once done()

 private:
  void OnReadDone(bool ok) override {
    if (!ok) return;
    started_ = true;
    StartRead(&response_);
  }
  void OnDone(const grpc::Status& status) override {
    status_ = status;
    done_ = true;
  }

  const v1::GenerateRequest request_;
  grpc::ClientContext context_;
  v1::GenerateResponse response_;
  grpc::Status status_;
  std::atomic<bool> started_{false}, done_{false};
};

double ResidentMiB(pid_t pid) {
  std::ifstream statm("/proc/" + std::to_string(pid) + "/statm");
  int64_t size = 0, resident = 0;
  statm >> size >> resident;
  return static_cast<double>(resident * sysconf(_SC_PAGESIZE)) / (1 << 20);
}

double CpuSeconds(pid_t pid) {
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  std::string word;
  std::getline(stat, word, ')');  // the name may hold spaces
  double ticks = 0;
  for (int field = 3; field <= 15 && stat >> word; ++field) {
    if (field >= 14) ticks += std::stod(word);
  }
  return ticks / static_cast<double>(sysconf(_SC_CLK_TCK));
}

v1::ServerInfo Info(ServerProcess* server) {
  grpc::ClientContext context;
  v1::ServerInfo info;
  REQUIRE(server->stub().GetServerInfo(&context, {}, &info).ok());
  return info;
}

v1::GenerateRequest Ask(int max_tokens) {
  v1::GenerateRequest request;
  request.set_text("Where does Rita Pryor work?");
  request.mutable_sampling()->set_temperature(0);
  request.mutable_sampling()->set_ignore_eos(true);
  request.mutable_sampling()->set_max_tokens(static_cast<uint32_t>(max_tokens));
  return request;
}

// Of a request that goes before all that wait.
double UrgentSeconds(ServerProcess* server) {
  v1::GenerateRequest request = Ask(20);
  request.set_priority(10);
  const auto begin = SteadyClock::now();
  const Reply reply = Generate(server->stub(), request);
  CHECK(reply.status.ok());
  CHECK(reply.tokens.size() == 20);
  return std::chrono::duration<double>(SteadyClock::now() - begin).count();
}

template <typename Condition>
bool Within(int seconds, const Condition& condition) {
  const auto end = SteadyClock::now() + std::chrono::seconds(seconds);
  while (!condition()) {
    if (SteadyClock::now() > end) return false;
    std::this_thread::sleep_for(milliseconds(20));
  }
  return true;
}

// Files that this process and the server, which inherits the limit, need; false: the machine allows
// fewer.
bool AllowFiles(rlim_t files) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_max < files) return false;
  limit.rlim_cur = std::max(limit.rlim_cur, files);
  return setrlimit(RLIMIT_NOFILE, &limit) == 0;
}

struct Bounds {
  double server_kib, engine_kib;  // a stream
  double cpu;                     // of weft-server, seconds a second
};

void HoldOpen(int streams, int connections, const Bounds& bounds) {
  REQUIRE(AllowFiles(static_cast<rlim_t>(connections) + 500));
  ServerProcess server({"--ranks", "1", "--max-sequences", "2", "--max-waiting", "20000"});
  const pid_t engine = server.Ranks().at(0);
  const double alone = UrgentSeconds(&server);
  const double server_before = ResidentMiB(server.pid()), engine_before = ResidentMiB(engine);
  std::vector<std::unique_ptr<v1::Inference::Stub>> stubs;
  for (int i = 0; i < connections; ++i) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // a connection of its own
    stubs.push_back(v1::Inference::NewStub(
        grpc::CreateCustomChannel("127.0.0.1:" + std::to_string(server.port()),
                                  grpc::InsecureChannelCredentials(), arguments)));
  }
  const auto begin = SteadyClock::now();
  std::vector<std::unique_ptr<IdleCall>> calls;
  for (int i = 0; i < streams; ++i) {
    auto* stub = stubs[static_cast<size_t>(i % connections)].get();
    calls.push_back(std::make_unique<IdleCall>(stub, Ask(4000)));
  }
  const auto all = [&](auto property) {
    return std::all_of(calls.begin(), calls.end(),
                       [&](const auto& call) { return property(*call); });
  };
  REQUIRE(Within(120, [&] { return all([](const IdleCall& call) { return call.started(); }); }));
  REQUIRE(Within(10, [&] { return Info(&server).waiting() >= streams - 2; }));
  const double opened = std::chrono::duration<double>(SteadyClock::now() - begin).count();
  const double cpu_before = CpuSeconds(server.pid());
  std::this_thread::sleep_for(std::chrono::seconds(3));
  const double cpu = (CpuSeconds(server.pid()) - cpu_before) / 3;
  const double server_kib = 1024 * (ResidentMiB(server.pid()) - server_before) / streams;
  const double engine_kib = 1024 * (ResidentMiB(engine) - engine_before) / streams;
  const double among = UrgentSeconds(&server);
  WARN(streams << " open streams on " << connections << " connections, opened in " << opened
               << " s: weft-server " << server_kib << " KiB a stream and " << 100 * cpu
               << " % of a core, with two streaming; the engine " << engine_kib
               << " KiB a stream; an urgent request of 20 tokens took " << among << " s, " << alone
               << " s alone");
  CHECK(server_kib < bounds.server_kib);
  CHECK(engine_kib < bounds.engine_kib);
  CHECK(cpu < bounds.cpu);
  CHECK(among < 5 * alone + 2);
  for (const auto& call : calls) call->Cancel();
  REQUIRE(Within(60, [&] { return all([](const IdleCall& call) { return call.done(); }); }));
  for (const auto& call : calls) {
    REQUIRE(call->status().error_code() == grpc::StatusCode::CANCELLED);
  }
  CHECK(Within(10, [&] {
    const v1::ServerInfo info = Info(&server);
    return info.waiting() == 0 && info.running() == 0 && info.pages_free() == info.pages_total();
  }));
  CHECK(UrgentSeconds(&server) < 5 * alone + 2);
}

}  // namespace

TEST_CASE("idle streams: a thousand on a hundred connections") {
  HoldOpen(1000, 100, {100, 40, 0.5});
}

TEST_CASE("idle streams: ten thousand on ten connections and on as many", "[slow]") {
  HoldOpen(10000, GENERATE(10, 10000), {150, 40, 0.5});
}
