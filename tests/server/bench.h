// A whole front end in this process: test model, fake engine, server, client.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "server/serve/app.h"
#include "tests/server/fake_engine.h"
#include "tests/server/test_model.h"
#include "weft/v1/inference.grpc.pb.h"

namespace weft::server {

// Whether `condition` came true in time.
bool Eventually(const std::function<bool()>& condition,
                std::chrono::milliseconds time = std::chrono::seconds(10));

// What a stream brought.
struct Heard {
  grpc::Status status;
  std::string text;
  std::vector<std::string> deltas;
  std::vector<int32_t> ids;
  std::vector<float> logprobs;
  std::vector<v1::TopTokens> top;
  std::vector<v1::Scores> scores;
  std::vector<v1::SelectedTokens> selected;
  std::vector<v1::PrefillProgress> prefill;  // before the first delta
  std::vector<size_t> selected_after;        // ids that were heard before each
  v1::Complete complete;
  bool completed = false;

  void Take(const v1::GenerateResponse& response);
};

class Bench {
 public:
  // `more`: addresses of further engines.
  explicit Bench(double replay_timeout_seconds = 300, const std::vector<std::string>& more = {});
  ~Bench();

  // The front end goes and another one comes, at another address.
  void Restart();
  Heard Generate(const v1::GenerateRequest& request);
  Heard Chat(const v1::ChatRequest& request);
  // "" stands for the server as a whole.
  std::string Health(const std::string& service);

  TempFolder folder;
  std::unique_ptr<FakeEngine> engine;
  Options options;
  std::unique_ptr<App> app;
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::Inference::Stub> stub;

 private:
  void Open();
};

v1::GenerateRequest TextRequest(const std::string& text, int max_tokens);
v1::ChatRequest UserRequest(const std::string& text, int max_tokens);

}  // namespace weft::server
