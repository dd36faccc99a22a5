#include "server/api/resume_token.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>

#include "server/api/resolve_sampling.h"
#include "server/backend/engine_fit.h"

namespace weft::server {
namespace {

using grpc::Status;
using resume::v1::Record;

constexpr char kVersion = 1;
constexpr size_t kHead = 9;

// FNV-1a: against mistakes, not against forgers, who could send any request as well.
class Digest {
 public:
  Digest& Add(const void* data, size_t size) {
    const auto* bytes = static_cast<const unsigned char*>(data);
    for (size_t i = 0; i < size; ++i) value_ = (value_ ^ bytes[i]) * 0x100000001b3u;
    return *this;
  }
  Digest& Add(uint64_t number) { return Add(&number, sizeof(number)); }
  Digest& Add(const std::string& text) { return Add(text.size()).Add(text.data(), text.size()); }
  // Maps in a fixed order.
  Digest& Add(const google::protobuf::MessageLite& message) {
    std::string bytes;
    {
      google::protobuf::io::StringOutputStream out(&bytes);
      google::protobuf::io::CodedOutputStream coded(&out);
      coded.SetSerializationDeterministic(true);
      message.SerializeToCodedStream(&coded);
    }
    return Add(bytes);
  }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0xcbf29ce484222325u;
};

uint64_t SamplingDigest(const Resolved& resolved) {
  Digest digest;
  digest.Add(resolved.engine.sampling())
      .Add(static_cast<uint64_t>(resolved.engine.max_tokens()))
      .Add(static_cast<uint64_t>(resolved.choices));
  const auto& ids = resolved.engine.stop_ids();
  digest.Add(ids.data(), static_cast<size_t>(ids.size()) * sizeof(int32_t));
  for (const std::string& stop : resolved.stops.strings) digest.Add(stop);
  return digest.Add(resolved.stops.include).value();
}

Record Describe(const Resolved& resolved) {
  const engine::v1::GenerateRequest& request = resolved.engine;
  const auto& ids = request.prompt_ids();
  Record record;
  record.set_request_id(resolved.id);
  record.set_seed(request.seed());
  record.set_nonce(DrawSeed());
  record.set_prompt(Digest()
                        .Add(resolved.reply.has_value())
                        .Add(ids.data(), static_cast<size_t>(ids.size()) * sizeof(int32_t))
                        .value());
  record.set_sampling(SamplingDigest(resolved));
  record.set_selection(Digest().Add(request.selection()).value());
  record.set_scoring(Digest()
                         .Add(static_cast<uint64_t>(request.logprobs_from()))
                         .Add(static_cast<uint64_t>(request.prompt_logprobs()))
                         .value());
  return record;
}

Status CheckSame(const Record& before, const Record& now, const std::string& request_id,
                 const v1::Sampling& sampling) {
  const std::tuple<const char*, uint64_t, uint64_t> parts[] = {
      {"the prompt", before.prompt(), now.prompt()},
      {"sampling", before.sampling(), now.sampling()},
      {"selection", before.selection(), now.selection()},
      {"logprobs_from and prompt_logprobs", before.scoring(), now.scoring()}};
  for (const auto& [name, then, digest] : parts) {
    if (then == digest) continue;
    return InvalidArgument(fmt::format(
        "{} must be as in the request of resume.token, on a server of the same limits and "
        "defaults; got another",
        name));
  }
  if (!request_id.empty() && request_id != before.request_id()) {
    return InvalidArgument(
        fmt::format("request_id must be that of resume.token, '{}', or empty; got '{}'",
                    before.request_id(), request_id));
  }
  if (sampling.has_seed() && sampling.seed() != before.seed()) {
    return InvalidArgument(
        fmt::format("sampling.seed must be that of resume.token, {}, or unset; got {}",
                    before.seed(), sampling.seed()));
  }
  return Status::OK;
}

Status CheckChoice(const v1::ResumedChoice& choice, const std::string& field, const Limits& limits,
                   const engine::v1::GenerateRequest& request) {
  const auto& ids = choice.token_ids();
  Status status = CheckIds(ids, limits.vocab_size, field + ".token_ids");
  if (!status.ok()) return status;
  if (ids.size() > request.max_tokens()) {
    return InvalidArgument(fmt::format("{}.token_ids must be at most max_tokens, {}; got {}", field,
                                       request.max_tokens(), ids.size()));
  }
  const auto& stops = request.stop_ids();
  const auto stop = std::find_first_of(ids.begin(), ids.end(), stops.begin(), stops.end());
  if (stop != ids.end()) {
    return InvalidArgument(
        fmt::format("{}.token_ids[{}] must not be a stop token, which is never told; got {}", field,
                    stop - ids.begin(), *stop));
  }
  if (choice.text_bytes() >= 0) return Status::OK;
  return InvalidArgument(
      fmt::format("{}.text_bytes must be at least 0; got {}", field, choice.text_bytes()));
}

Status TakePosition(const v1::Resume& resume, const Limits& limits, Resolved* out) {
  if (resume.choices_size() > out->choices) {
    return InvalidArgument(fmt::format("resume.choices must be at most sampling.n, {}; got {}",
                                       out->choices, resume.choices_size()));
  }
  for (int i = 0; i < resume.choices_size(); ++i) {
    const Status status =
        CheckChoice(resume.choices(i), fmt::format("resume.choices[{}]", i), limits, out->engine);
    if (!status.ok()) return status;
  }
  const int scorable = out->engine.has_logprobs_from()
                           ? out->engine.prompt_ids_size() - out->engine.logprobs_from()
                           : 0;
  if (resume.scores() < 0 || resume.scores() > scorable) {
    return InvalidArgument(
        fmt::format("resume.scores must be from 0 to {}; got {}", scorable, resume.scores()));
  }
  out->told = {resume.choices().begin(), resume.choices().end()};
  out->told.resize(static_cast<size_t>(out->choices));
  out->scores_told = resume.scores();
  return Status::OK;
}

// While nothing was told the request may as well begin anew.
bool Begun(const Resolved& resolved) {
  return resolved.scores_told > 0 ||
         std::any_of(resolved.told.begin(), resolved.told.end(), [](const auto& choice) {
           return choice.token_ids_size() > 0 || choice.text_bytes() > 0 || choice.complete();
         });
}

}  // namespace

std::string EncodeResumeToken(const Record& record) {
  const std::string bytes = record.SerializeAsString();
  uint64_t sum = Digest().Add(bytes).value();
  std::string token(1, kVersion);
  for (int i = 0; i < 8; ++i, sum >>= 8) token += static_cast<char>(sum & 0xff);
  return token + bytes;
}

v1::Started StartedOf(const Resolved& resolved, const engine::v1::Admitted& admitted) {
  Record record = resolved.record;
  *record.mutable_admitted() = admitted;
  v1::Started started;
  started.set_request_id(resolved.id);
  started.set_seed(resolved.engine.seed());
  started.set_resume_token(EncodeResumeToken(record));
  return started;
}

Status DecodeResumeToken(const std::string& token, Record* record) {
  if (token.size() < kHead) {
    return InvalidArgument(fmt::format(
        "resume.token must be the resume_token of a Started; got {} bytes", token.size()));
  }
  if (token[0] != kVersion) {
    return InvalidArgument(fmt::format("resume.token must be of version {}; got version {}",
                                       static_cast<int>(kVersion),
                                       static_cast<int>(static_cast<unsigned char>(token[0]))));
  }
  if (record->ParseFromString(token.substr(kHead)) && EncodeResumeToken(*record) == token) {
    return Status::OK;
  }
  return InvalidArgument(
      fmt::format("resume.token must be as it came: the checksum of its {} bytes does not fit them",
                  token.size()));
}

Status ResolveResume(const v1::Resume* resume, const std::string& request_id,
                     const v1::Sampling& sampling, const Limits& limits, Resolved* out) {
  const Record now = Describe(*out);
  out->record = now;
  if (resume == nullptr) return Status::OK;
  Status status = DecodeResumeToken(resume->token(), &out->record);
  // A checksum keeps nobody from making a token.
  if (status.ok()) status = CheckId(out->record.request_id(), "the request id in resume.token");
  if (status.ok()) status = CheckSame(out->record, now, request_id, sampling);
  if (status.ok()) status = TakePosition(*resume, limits, out);
  if (!status.ok()) return status;
  out->id = out->record.request_id();
  out->engine.set_seed(out->record.seed());
  out->record.set_resumes(std::clamp(out->record.resumes(), 0, (1 << 30) - 1) + 1);
  out->resumed = true;
  out->begun = Begun(*out);
  return Status::OK;
}

std::string WhyNotResumed(const Resolved& resolved, const engine::v1::EngineInfo& info) {
  constexpr char kRule[] = "resume.token must be of a stream that this engine can go on with; ";
  const engine::v1::Admitted& admitted = resolved.record.admitted();
  if (const auto other = FirstDifference(admitted, info.defaults())) {
    return fmt::format("{}got one of {} '{}', and here it is '{}'", kRule, other->name,
                       other->before, other->now);
  }
  const int64_t context = int64_t{resolved.engine.prompt_ids_size()} + resolved.engine.max_tokens();
  const std::string why = WhyUnfit({admitted, context}, info);
  return why.empty() ? "" : kRule + why;
}

}  // namespace weft::server
