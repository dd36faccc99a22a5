// Requests, in protobuf's text format: what the front end refuses has a reason, and what it lets
// through the engine takes.
#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/text_format.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "engine/core/engine.h"
#include "engine/rpc/translate.h"
#include "server/api/resolve.h"
#include "tests/server/test_model.h"

namespace weft {
namespace {

constexpr int32_t kMaxContext = 300, kMaxTopk = 64;

void Require(bool condition, const std::string& what) {
  if (condition) return;
  std::fprintf(stderr, "violated: %s\n", what.c_str());
  std::abort();
}

// How deep the inputs get, told at the end.
struct Counts {
  long requests = 0, accepted = 0;
  ~Counts() { std::printf("%ld requests, %ld accepted\n", requests, accepted); }
} counts;

class Silent : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int, int, const std::string&) override {}
};

const text::TextModel& Model() {
  static const server::TempFolder folder;
  static const text::TextModel model =
      text::TextModel::FromFolder(server::WriteTestModel(folder.path() / "tiny"));
  return model;
}

Engine& TheEngine() {
  static SchedulerOptions scheduling{16, 4, 1, 16, 1000};
  static Engine engine(scheduling, {server::kVocabulary, kMaxContext, kMaxTopk},
                       {SelectionMode::kExact, 8, 0.99, MRule::kExactProbability, 0.99999},
                       [](const StepPlan&) -> StepResult { std::abort(); });
  return engine;
}

void CheckAccepted(const server::Resolved& resolved) {
  ++counts.accepted;
  Require(resolved.choices >= 1 && !resolved.id.empty(), "choices and an id");
  Require(resolved.engine.max_tokens() <= kMaxContext, "max_tokens within the context");
  EngineRequest request = Translate(resolved.engine);
  SelectionWish wish;
  if (resolved.engine.selection().has_index_topk()) {
    wish.topk = resolved.engine.selection().index_topk();
  }
  if (resolved.engine.selection().has_coverage()) {
    wish.gamma = resolved.engine.selection().coverage();
  }
  Status status = TheEngine().ResolveSelection(wish, &request.selection);
  Require(status.ok(), status.message);
  int64_t id;
  status = TheEngine().Submit(
      std::move(request), [](EngineEvent) {}, &id);
  Require(status.ok(), status.message);
  TheEngine().Cancel(id);
  Require(!TheEngine().Step(), "a cancelled request runs");
}

template <typename Request>
void Try(const std::string& text) {
  google::protobuf::TextFormat::Parser parser;
  Silent silent;
  parser.RecordErrorsTo(&silent);
  Request request;
  if (!parser.ParseFromString(text, &request)) return;
  // As on the wire: strings must be UTF-8 there.
  Request wire;
  if (!wire.ParseFromString(request.SerializeAsString())) return;
  ++counts.requests;
  server::Resolved resolved;
  const grpc::Status status =
      server::Resolve(wire, Model(), {server::kVocabulary, kMaxContext, kMaxTopk}, &resolved);
  if (status.ok()) return CheckAccepted(resolved);
  Require(status.error_code() == grpc::StatusCode::INVALID_ARGUMENT, "INVALID_ARGUMENT");
  Require(!status.error_message().empty(), "a reason");
}

}  // namespace
}  // namespace weft

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  weft::Try<weft::v1::GenerateRequest>(text);
  weft::Try<weft::v1::ChatRequest>(text);
  return 0;
}
