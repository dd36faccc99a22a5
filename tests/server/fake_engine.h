// An engine without a model: weft.engine.v1 with scripted behaviour.
#pragma once

#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "weft/engine/v1/engine.grpc.pb.h"

namespace weft::server {

// What it does with each request.
struct FakeScript {
  // The output, after which it finishes; empty: letters that depend on prompt and index, without
  // end. An id among the request's stop_ids ends it with STOP.
  std::vector<int32_t> tokens;
  std::chrono::milliseconds delay{0};          // before each token
  std::chrono::milliseconds admit_delay{0};    // before Admitted
  std::vector<int> prefill;                    // tokens done, told one by one where asked for
  std::chrono::milliseconds prefill_delay{0};  // before each
  int fail_at = -1;                            // ends with `failure` instead of this token
  grpc::Status failure;
  int64_t retry_after_ms = 0;    // told with it, where not 0
  int repeat_last = 0;           // before each token, this many of those before it once more
  bool wrong_when_busy = false;  // another letter while a second request runs
  int skip_at = -1;              // leaves out the token of this index
  int hang_at = -1;  // says nothing more from this token on (or instead of the end), until killed
  int score_run = 1000000;     // scores in one event
  int hang_at_score = -1;      // the same after this many scores
  bool cannot_honour = false;  // refuses replays that were admitted elsewhere
  bool no_abort = false;       // knows no Abort
  grpc::Status after_end;      // the call ends with this once it has finished
};

class FakeEngine final : public engine::v1::Engine::Service {
 public:
  using Change = std::function<void(engine::v1::EngineInfo*)>;

  // `change`: what is to be other about it, from the first answer on.
  explicit FakeEngine(const std::string& listen = "127.0.0.1:0", const Change& change = nullptr);
  ~FakeEngine() override { Kill(); }

  const std::string& address() const { return address_; }
  void set_script(FakeScript script);
  void set_info(const engine::v1::EngineInfo& info);
  engine::v1::EngineInfo info() const;
  engine::v1::GenerateRequest last_request() const;

  std::vector<engine::v1::GenerateRequest> requests() const;  // all of them
  bool aborted(const std::string& request_id) const;

  bool was_asked_for(int max_tokens) const;  // some request had this max_tokens

  int running() const { return running_; }
  int started() const { return started_; }
  int cancelled() const { return cancelled_; }  // calls that ended because the front end left
  int written() const { return written_; }      // token events that gRPC took

  void Kill();  // as if the process ended
  void Wait() { server_->Wait(); }

 private:
  grpc::Status Generate(grpc::ServerContext* context, const engine::v1::GenerateRequest* request,
                        grpc::ServerWriter<engine::v1::GenerateEvent>* writer) override;
  grpc::Status Abort(grpc::ServerContext* context, const engine::v1::AbortRequest* request,
                     engine::v1::AbortResponse* reply) override;
  grpc::Status GetInfo(grpc::ServerContext* context, const engine::v1::GetInfoRequest* request,
                       engine::v1::EngineInfo* reply) override;
  // Until the caller leaves or aborts.
  grpc::Status Hang(grpc::ServerContext* context, const engine::v1::GenerateRequest& request);
  grpc::Status Play(const FakeScript& script, grpc::ServerContext* context,
                    const engine::v1::GenerateRequest& request,
                    grpc::ServerWriter<engine::v1::GenerateEvent>* writer);
  grpc::Status PlayTokens(const FakeScript& script, grpc::ServerContext* context,
                          const engine::v1::GenerateRequest& request,
                          grpc::ServerWriter<engine::v1::GenerateEvent>* writer);

  mutable std::mutex mutex_;
  FakeScript script_;
  engine::v1::EngineInfo info_;
  engine::v1::GenerateRequest last_request_;
  std::vector<engine::v1::GenerateRequest> requests_;
  std::set<int> asked_for_;
  std::set<std::string> aborted_;
  static inline std::atomic<uint64_t> starts_{0};
  const uint64_t start_ = uint64_t(getpid()) << 32 | ++starts_;
  std::atomic<int> running_{0};
  std::atomic<int> started_{0};
  std::atomic<int> cancelled_{0};
  std::atomic<int> written_{0};
  std::string address_;
  std::unique_ptr<grpc::Server> server_;
};

// What it tells as a token's log-probability, where asked to.
float FakeLogprob(int output_index);

// The letter it makes for this prompt at this index.
int32_t FakeToken(const engine::v1::GenerateRequest& request, int output_index);

}  // namespace weft::server
