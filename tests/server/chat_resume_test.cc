// weft-chat where a server refuses to go on with its answer.
#include <grpcpp/grpcpp.h>

#include <catch2/catch.hpp>
#include <mutex>

#include "tests/server/shell.h"
#include "weft/v1/inference.grpc.pb.h"

namespace weft::server {
namespace {

using Catch::Matchers::Contains;
using grpc::Status;
using grpc::StatusCode;

const Status kTooMany(StatusCode::RESOURCE_EXHAUSTED, "too many requests wait");
constexpr int kAlways = 1000000;

// Loses its stream after the first words; of the requests that resume it refuses the first few.
class RefusingServer final : public v1::Inference::Service {
 public:
  RefusingServer(int refusals, Status refusal) : refusals_(refusals), refusal_(std::move(refusal)) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~RefusingServer() override { server_->Shutdown(); }

  Ran Chat(const std::string& options = "") const {
    return Shell(WEFT_BIN_DIR "/weft-chat --server 127.0.0.1:" + std::to_string(port_) +
                 " -q hello " + options + " </dev/null");
  }
  std::vector<v1::ChatRequest> requests() const {
    const std::lock_guard lock(mutex_);
    return requests_;
  }

 private:
  Status Chat(grpc::ServerContext*, const v1::ChatRequest* request,
              grpc::ServerWriter<v1::GenerateResponse>* writer) override {
    const std::lock_guard lock(mutex_);
    requests_.push_back(*request);
    const bool resumes = request->has_resume();
    if (resumes && refusals_-- > 0) return refusal_;
    v1::GenerateResponse started, delta, complete;
    started.mutable_started()->set_resume_token("a token");
    delta.mutable_delta()->set_text(resumes ? "two" : "one ");
    delta.mutable_delta()->add_token_ids(resumes ? 8 : 7);
    writer->Write(started);
    writer->Write(delta);
    if (!resumes) return {StatusCode::UNAVAILABLE, "the server is stopping"};
    complete.mutable_complete()->set_finish_reason("stop");
    writer->Write(complete);
    return Status::OK;
  }

  int refusals_;
  const Status refusal_;
  int port_ = 0;
  mutable std::mutex mutex_;
  std::vector<v1::ChatRequest> requests_;
  std::unique_ptr<grpc::Server> server_;
};

TEST_CASE("weft-chat: tries again where too many others come back to a server") {
  const RefusingServer server(3, kTooMany);
  const Ran ran = server.Chat();
  CHECK(ran.code == 0);
  CHECK(ran.out == "one two\n");
  CHECK_THAT(ran.err, Contains("(going on)") && !Contains("too many"));
  CHECK(ran.err.find("is lost") == ran.err.rfind("is lost"));  // told once
  const std::vector<v1::ChatRequest> requests = server.requests();
  REQUIRE(requests.size() == 5);
  CHECK_FALSE(requests[0].has_resume());
  for (size_t i = 1; i < requests.size(); ++i) {
    const v1::Resume& resume = requests[i].resume();
    CHECK(resume.token() == "a token");
    REQUIRE(resume.choices_size() == 1);
    CHECK(resume.choices(0).text_bytes() == 4);
    REQUIRE(resume.choices(0).token_ids_size() == 1);
    CHECK(resume.choices(0).token_ids(0) == 7);
  }
}

TEST_CASE("weft-chat: a refusal that lasts ends the answer with its reason") {
  const RefusingServer server(kAlways, kTooMany);
  const Ran ran = server.Chat("--resume-timeout 1");
  CHECK(ran.code == 1);
  CHECK_THAT(ran.out, Contains("one "));
  CHECK_THAT(ran.err, Contains("too many requests wait"));
  CHECK(server.requests().size() > 3);
  CHECK(server.requests().size() < 12);  // with pauses
}

TEST_CASE("weft-chat: does not insist where the server cannot go on") {
  const RefusingServer server(kAlways, {StatusCode::INVALID_ARGUMENT, "resume: of another model"});
  const Ran ran = server.Chat();
  CHECK(ran.code == 1);
  CHECK_THAT(ran.err, Contains("resume: of another model"));
  CHECK(server.requests().size() == 2);
}

}  // namespace
}  // namespace weft::server
