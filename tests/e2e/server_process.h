// A real weft-server as a child process, with its engine under mpirun, for tests through its own
// door.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "weft/v1/inference.grpc.pb.h"

namespace weft::e2e {

class ServerProcess {
 public:
  // Starts weft-server with the demo model on `port`, or a free one. `ready`: waits until it
  // serves, and throws std::runtime_error with its log otherwise.
  explicit ServerProcess(const std::vector<std::string>& args, bool ready = true, int port = 0);
  ~ServerProcess();  // SIGTERM, then SIGKILL

  v1::Inference::Stub& stub() { return *stub_; }
  pid_t pid() const { return pid_; }
  int port() const { return port_; }
  std::string Log() const;
  // The processes below the server: all, or those of weft-engine.
  std::vector<pid_t> Children() const;
  std::vector<pid_t> Ranks() const;
  // Exit code, or -1 when it still runs after `seconds`.
  int Wait(double seconds);

 private:
  int port_ = 0;
  pid_t pid_ = -1;
  int exit_code_ = -1;
  std::string log_path_;
  std::unique_ptr<v1::Inference::Stub> stub_;
};

std::string DemoModel();  // folder
int FreePort();

// What a stream gave, put together.
struct Reply {
  grpc::Status status;
  std::string text;
  std::vector<int32_t> tokens;
  std::vector<float> token_logprobs;
  std::vector<float> logprobs;
  std::vector<int32_t> argmax;
  std::vector<v1::SelectedTokens> selected;
  v1::Complete complete;

  void Take(const v1::GenerateResponse& event);
};
Reply Generate(v1::Inference::Stub& stub, const v1::GenerateRequest& request);
Reply Chat(v1::Inference::Stub& stub, const v1::ChatRequest& request);
std::vector<int32_t> Tokenize(v1::Inference::Stub& stub, const std::string& text);

}  // namespace weft::e2e
