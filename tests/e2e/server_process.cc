#include "tests/e2e/server_process.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <grpcpp/grpcpp.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <thread>

namespace weft::e2e {
namespace {

using SteadyClock = std::chrono::steady_clock;

template <typename Reader>
Reply Read(grpc::ClientContext* context, Reader reader) {
  (void)context;
  Reply reply;
  v1::GenerateResponse event;
  while (reader->Read(&event)) reply.Take(event);
  reply.status = reader->Finish();
  return reply;
}

}  // namespace

void Reply::Take(const v1::GenerateResponse& event) {
  if (event.has_delta()) {
    text += event.delta().text();
    tokens.insert(tokens.end(), event.delta().token_ids().begin(), event.delta().token_ids().end());
    token_logprobs.insert(token_logprobs.end(), event.delta().logprobs().begin(),
                          event.delta().logprobs().end());
  } else if (event.has_scores()) {
    logprobs.insert(logprobs.end(), event.scores().logprobs().begin(),
                    event.scores().logprobs().end());
    argmax.insert(argmax.end(), event.scores().argmax().begin(), event.scores().argmax().end());
  } else if (event.has_selected()) {
    selected.push_back(event.selected());
  } else if (event.has_complete()) {
    complete = event.complete();
  }
}

std::string DemoModel() { return WEFT_SOURCE_DIR "/deploy/models/demo"; }

int FreePort() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    throw std::runtime_error("no free port");
  }
  close(fd);
  return ntohs(address.sin_port);
}

ServerProcess::ServerProcess(const std::vector<std::string>& args, bool ready, int port)
    : port_(port > 0 ? port : FreePort()),
      log_path_("/tmp/weft-e2e-" + std::to_string(port_) + ".log") {
  std::vector<std::string> words = {WEFT_BIN_DIR "/weft-server", "--listen",
                                    "127.0.0.1:" + std::to_string(port_)};
  bool has_model = false;
  for (const std::string& arg : args) has_model |= arg == "--model";
  if (!has_model) words.insert(words.end(), {"--model", DemoModel()});
  words.insert(words.end(), args.begin(), args.end());
  unlink(log_path_.c_str());  // an earlier one's of this port
  pid_ = fork();
  if (pid_ == 0) {
    const int log = open(log_path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    dup2(log, 1);
    dup2(log, 2);
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    execv(argv[0], argv.data());
    _exit(127);
  }
  grpc::ChannelArguments channel;
  channel.SetMaxReceiveMessageSize(64 << 20);
  // gRPC would share the connection, and its back-off, with one to an earlier server of the port.
  channel.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  stub_ = v1::Inference::NewStub(grpc::CreateCustomChannel(
      "127.0.0.1:" + std::to_string(port_), grpc::InsecureChannelCredentials(), channel));
  const auto deadline = SteadyClock::now() + std::chrono::seconds(60);
  while (ready && Log().find("info ready: ") == std::string::npos) {
    if (Wait(0.05) >= 0 || SteadyClock::now() > deadline) {
      throw std::runtime_error("weft-server did not become ready:\n" + Log());
    }
  }
}

ServerProcess::~ServerProcess() {
  if (exit_code_ < 0) {
    kill(pid_, SIGTERM);
    if (Wait(15) < 0) {
      kill(pid_, SIGKILL);
      Wait(5);
    }
  }
  unlink(log_path_.c_str());
}

std::string ServerProcess::Log() const {
  std::ostringstream text;
  text << std::ifstream(log_path_).rdbuf();
  return text.str();
}

std::vector<pid_t> ServerProcess::Children() const {
  std::map<pid_t, pid_t> parents;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const pid_t pid = std::atoi(entry.path().filename().c_str());
    std::ifstream stat(entry.path() / "stat");
    std::string name, state;
    pid_t parent = 0;
    std::getline(stat, name, ')');  // the name may hold spaces
    if (pid > 0 && stat >> state >> parent && state != "Z") parents[pid] = parent;
  }
  std::vector<pid_t> found;
  for (const auto& [pid, parent] : parents) {
    pid_t up = parent;
    while (up > 1 && up != pid_) up = parents.count(up) > 0 ? parents[up] : 0;
    if (up == pid_) found.push_back(pid);
  }
  return found;
}

std::vector<pid_t> ServerProcess::Ranks() const {
  std::vector<pid_t> ranks;
  for (const pid_t pid : Children()) {
    std::string program;
    std::getline(std::ifstream("/proc/" + std::to_string(pid) + "/cmdline"), program, '\0');
    if (program.ends_with("/weft-engine")) ranks.push_back(pid);
  }
  return ranks;
}

int ServerProcess::Wait(double seconds) {
  const auto deadline = SteadyClock::now() + std::chrono::duration<double>(seconds);
  while (exit_code_ < 0) {
    int status = 0;
    if (waitpid(pid_, &status, WNOHANG) == pid_) {
      exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      break;
    }
    if (SteadyClock::now() > deadline) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return exit_code_;
}

Reply Generate(v1::Inference::Stub& stub, const v1::GenerateRequest& request) {
  grpc::ClientContext context;
  return Read(&context, stub.Generate(&context, request));
}

Reply Chat(v1::Inference::Stub& stub, const v1::ChatRequest& request) {
  grpc::ClientContext context;
  return Read(&context, stub.Chat(&context, request));
}

std::vector<int32_t> Tokenize(v1::Inference::Stub& stub, const std::string& text) {
  grpc::ClientContext context;
  v1::TokenizeRequest request;
  request.set_text(text);
  v1::TokenizeResponse response;
  const grpc::Status status = stub.Tokenize(&context, request, &response);
  if (!status.ok()) throw std::runtime_error("Tokenize: " + status.error_message());
  return {response.ids().begin(), response.ids().end()};
}

}  // namespace weft::e2e
