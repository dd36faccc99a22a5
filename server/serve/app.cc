#include "server/serve/app.h"

#include <spdlog/spdlog.h>

#include <filesystem>

#include "server/api/mode_name.h"
#include "weft/engine/v1/engine.pb.h"

namespace weft::server {
namespace {

using std::chrono::milliseconds;

// A prompt is read no further than the longest context, so two threads keep ahead of any engine.
constexpr int kPromptThreads = 2;
constexpr size_t kWaitingPromptBytes = size_t{512} << 20, kWaitingTextBytes = size_t{128} << 20;

std::string FolderName(const std::string& folder) {
  return std::filesystem::weakly_canonical(folder).filename().string();
}

}  // namespace

App::App(const Options& options)
    : options_(options),
      text_(text::TextModel::FromFolder(options.model, options.chat_encoding)),
      model_name_(FolderName(options.model)),
      engines_(
          std::max<size_t>(1, options.engines.size()),
          [this](const engine::v1::EngineInfo& info) { return Refuse(info); },
          [this](const EngineLink& link) { OnEngineChanged(link); }),
      room_(&engines_, std::chrono::duration<double>(options.replay_timeout_seconds),
            options.most_deaths),
      prompt_workers_(kPromptThreads, kWaitingPromptBytes),
      tokenize_workers_(1, kWaitingTextBytes),
      frontend_{text_,           engines_,          room_,       gate_,
                prompt_workers_, tokenize_workers_, model_name_, options.stream_buffer},
      stall_watch_(&gate_, std::chrono::duration<double>(options.stall_timeout_seconds)) {}

App::~App() { Stop(); }

bool App::Open(std::string* error) {
  server_ = GrpcServer::Open(options_.listen, options_.keepalive_seconds, &frontend_, error);
  if (server_ == nullptr) return false;
  if (!text_.chat_warning.empty()) spdlog::warn("{}: {}", model_name_, text_.chat_warning);
  {
    const std::lock_guard lock(health_mutex_);
    health_open_ = true;
  }
  spdlog::info("listening on {}", server_->address());
  if (options_.engines.empty()) {
    supervisor_ = std::make_unique<Supervisor>(options_, &engines_.link(0));
  }
  for (size_t i = 0; i < options_.engines.size(); ++i) {
    spdlog::info("attaching to the engine at {}", options_.engines[i]);
    engines_.link(i).Attach(options_.engines[i]);
  }
  return true;
}

std::optional<std::string> App::StartFailure() const {
  return supervisor_ == nullptr ? std::nullopt : supervisor_->StartFailure();
}

std::string App::Refuse(const engine::v1::EngineInfo& info) const {
  if (info.vocab_size() == text_.vocab_size) return "";
  return fmt::format("the engine serves another model: its vocabulary has {} tokens, that of {} {}",
                     info.vocab_size(), options_.model, text_.vocab_size);
}

void App::OnEngineChanged(const EngineLink& link) {
  const EngineLink::State state = link.state();
  if (state.ready) {
    const engine::v1::Admitted& defaults = state.info->defaults();
    spdlog::info("ready: {} with G={}, {} K={} m={}, context {}{}", model_name_,
                 state.info->ranks(), ModeName(defaults.mode()), defaults.index_topk(),
                 defaults.m(), state.info->max_context(), EngineLink::Where(state));
  } else if (!stopping_) {  // else it is we who end it
    spdlog::warn("not ready: {}{}", state.why_not, EngineLink::Where(state));
  }
  UpdateHealth();
}

void App::UpdateHealth() {
  const std::lock_guard lock(health_mutex_);
  if (health_open_) server_->SetServing(ready());
}

void App::BeginDrain() {
  gate_.Close();
  UpdateHealth();
}

void App::Stop() {
  stopping_ = true;
  BeginDrain();
  {
    const std::lock_guard lock(health_mutex_);
    health_open_ = false;
  }
  gate_.AbortAll({grpc::StatusCode::UNAVAILABLE, "the server is stopping"});
  gate_.WaitUntilEmpty(milliseconds(2000));  // for the last statuses to reach their clients
  if (server_ != nullptr) server_->Shutdown(milliseconds(500));
  supervisor_.reset();
}

}  // namespace weft::server
