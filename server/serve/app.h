// weft-server as a whole: text model, engine, door; and how they start and end together.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "server/api/frontend.h"
#include "server/api/stall_watch.h"
#include "server/config/options.h"
#include "server/launch/supervisor.h"
#include "server/serve/grpc_server.h"

namespace weft::server {

class App {
 public:
  // Reads the text side of the model folder; throws std::runtime_error.
  explicit App(const Options& options);
  ~App();  // Stop()

  // Opens the port, then starts the engine or attaches to those there are. Until an engine is ready
  // for the first time requests get UNAVAILABLE, later they wait for the next; meanwhile health
  // says NOT_SERVING. Returns false with *error set.
  bool Open(std::string* error);

  std::string address() const { return server_->address(); }
  std::optional<std::string> StartFailure() const;
  bool ready() const { return engines_.ready() && !gate_.closed(); }
  int running() const { return gate_.running(); }

  // Health goes to NOT_SERVING, new requests are refused, running ones go on.
  void BeginDrain();
  bool WaitDrained(std::chrono::milliseconds time) { return gate_.WaitUntilEmpty(time); }

  // Ends what still runs, closes the port, ends the engine.
  void Stop();

 private:
  std::string Refuse(const engine::v1::EngineInfo& info) const;
  void OnEngineChanged(const EngineLink& link);
  void UpdateHealth();

  const Options options_;
  const text::TextModel text_;
  const std::string model_name_;  // the folder's last name
  RequestGate gate_;
  std::mutex health_mutex_;
  bool health_open_ = false;  // the server can be told
  std::atomic<bool> stopping_{false};
  EnginePool engines_;
  WaitingRoom room_;
  TextWorkers prompt_workers_, tokenize_workers_;
  Frontend frontend_;
  StallWatch stall_watch_;
  std::unique_ptr<GrpcServer> server_;
  std::unique_ptr<Supervisor> supervisor_;
};

}  // namespace weft::server
