#include "tools/bench/serve/serve.h"

#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "tools/bench/serve/call.h"
#include "tools/bench/serve/figures.h"
#include "tools/bench/serve/load.h"
#include "tools/bench/serve/mixed.h"
#include "tools/bench/serve/requests.h"
#include "tools/cli/values.h"
#include "tools/client/reach.h"

namespace weft::bench {
namespace {

using nlohmann::ordered_json;
using Requests = std::vector<v1::GenerateRequest>;

constexpr uint32_t kCheckedTokens = 32;  // of an answer

struct Server {
  std::unique_ptr<v1::Inference::Stub> stub;
  v1::ModelInfo model;
  v1::ServerInfo info;
};

Server Connect(const std::string& target) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(64 << 20);
  arguments.SetMaxSendMessageSize(64 << 20);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  Server server;
  const auto channel =
      grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), arguments);
  server.stub = v1::Inference::NewStub(channel);
  const auto ask = [&](auto method, const auto& request, auto* reply) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
    const grpc::Status status = (server.stub.get()->*method)(&context, request, reply);
    if (!status.ok()) {
      throw std::runtime_error(client::NotAvailable(*channel, target, status.error_message()));
    }
  };
  ask(&v1::Inference::Stub::GetModelInfo, v1::GetModelInfoRequest(), &server.model);
  ask(&v1::Inference::Stub::GetServerInfo, v1::GetServerInfoRequest(), &server.info);
  return server;
}

void CheckSame(const Answer& got, const Answer& want, size_t request, const std::string& where) {
  for (const Answer* answer : {&want, &got}) {
    if (!answer->ok()) {
      throw std::runtime_error("the check's request " + std::to_string(request) + " " +
                               (answer == &want ? "alone" : where) + ": " +
                               answer->status.error_message());
    }
  }
  const size_t both = std::min({got.ids.size(), want.ids.size(), size_t{kCheckedTokens}});
  size_t same = 0;
  while (same < both && got.ids[same] == want.ids[same]) ++same;
  const bool complete = want.ids.size() >= kCheckedTokens ? both == kCheckedTokens
                                                          : got.ids.size() == want.ids.size();
  if (same == both && complete) return;
  throw std::runtime_error("wrong answer: request " + std::to_string(request) + " " + where +
                           " differs from the same one alone at output token " +
                           std::to_string(same));
}

// The answers of the first requests alone, after a look whether they are the same together. Salts
// keep the run that follows from finding their prompts in the cache, and the second from the first.
std::vector<Answer> Check(Server* server, Requests requests, const ServeOptions& options) {
  requests.resize(std::min(requests.size(), static_cast<size_t>(options.check)));
  std::vector<Answer> alone;
  for (v1::GenerateRequest& request : requests) {
    v1::Sampling* sampling = request.mutable_sampling();
    sampling->set_max_tokens(std::min(sampling->max_tokens(), kCheckedTokens));
    request.set_cache_salt(Salt("alone"));
    alone.push_back(Ask(server->stub.get(), request, options.timeout));
  }
  Requests together;
  for (int copy = 0; copy < 4; ++copy) {  // one request has company too
    for (v1::GenerateRequest& request : requests) {
      request.set_cache_salt(Salt("together " + std::to_string(copy)));
      together.push_back(request);
    }
  }
  const std::vector<Answer> answers = AskTogether(server->stub.get(), together, options.timeout);
  for (size_t i = 0; i < answers.size(); ++i) {
    CheckSame(answers[i], alone[i % alone.size()], i % alone.size(), "together with others");
  }
  return alone;
}

RunFigures RunOnce(Server* server, const Requests& requests, int concurrency,
                   const std::vector<Answer>& alone, const ServeOptions& options) {
  const bool open = options.rate > 0;
  const std::vector<Answer> answers =
      open ? RunOpen(server->stub.get(), requests, options)
           : RunClosed(server->stub.get(), requests, concurrency, options);
  for (size_t i = 0; i < alone.size(); ++i) {
    if (answers[i].ok()) CheckSame(answers[i], alone[i], i, "under load");
  }
  const std::string load = open ? cli::Format("open loop, %g a second", options.rate)
                                : cli::Format("closed loop, %d at once", concurrency);
  return FiguresOf(load, answers, options.slo_ttft, options.slo_itl);
}

ordered_json Describe(const Server& server, const ServeOptions& options) {
  return {{"target", options.target},
          {"model", server.model.name()},
          {"version", server.info.version()},
          {"ranks", server.info.ranks()},
          {"selection", server.info.selection_mode()},
          {"partition", server.info.partition()},
          {"exchange", server.info.exchange()},
          {"isa", server.info.isa()},
          {"seed", options.seed}};
}

int Measure(const ServeOptions& options) {
  Server server = Connect(options.target);
  ordered_json json = {{"server", Describe(server, options)}};
  if (!options.json) {
    std::cout << cli::Format("%s at %s: %d ranks, %s selection, %s\n", server.model.name().c_str(),
                             options.target.c_str(), server.info.ranks(),
                             server.info.selection_mode().c_str(), server.info.isa().c_str());
  }
  const Requests requests = MakeRequests(options, server.model, options.requests);
  const std::vector<Answer> alone = Check(&server, requests, options);
  json["checked_requests"] = alone.size();
  if (!options.json && !alone.empty()) {
    std::cout << "checked: " << alone.size() << " requests, the same answers alone and among others"
              << std::endl;
  }
  if (options.mixed) {
    const MixedFigures mixed = RunMixed(server.stub.get(), server.model, options);
    json["mixed"] = ToJson(mixed);
    std::cout << (options.json ? json.dump(2) + "\n" : ToText(mixed)) << std::flush;
    return 0;
  }
  std::vector<RunFigures> runs;
  for (size_t i = 0; i < options.concurrency.size(); ++i) {
    // Each run's prompts are new to the cache.
    Requests salted = requests;
    for (v1::GenerateRequest& request : salted) {
      request.set_cache_salt(Salt("run " + std::to_string(i)));
    }
    runs.push_back(RunOnce(&server, salted, options.concurrency[i], alone, options));
    json["runs"].push_back(ToJson(runs.back()));
    if (!options.json) std::cout << ToText(runs.back()) << std::flush;
  }
  if (options.json) {
    std::cout << json.dump(2) << std::endl;
  } else if (runs.size() > 1) {
    std::cout << "\n" << Table(runs) << std::flush;
  }
  const bool any =
      std::any_of(runs.begin(), runs.end(), [](const RunFigures& r) { return r.answered > 0; });
  if (!any) std::cerr << "error: not one request was answered\n";
  return any ? 0 : 1;
}

}  // namespace

int RunServe(const ServeOptions& options) {
  try {
    return Measure(options);
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << "\n";
    return 1;
  }
}

}  // namespace weft::bench
