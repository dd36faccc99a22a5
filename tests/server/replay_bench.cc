#include "tests/server/replay_bench.h"

namespace weft::server {

std::vector<int32_t> Bytes(const std::string& text) {
  std::vector<int32_t> ids;
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

FakeScript Saying(const std::string& text, int hang_at) {
  FakeScript script;
  script.tokens = Bytes(text);
  script.hang_at = hang_at;
  return script;
}

Call::Call(Bench* bench, const v1::GenerateRequest& request, std::chrono::milliseconds time) {
  context_.set_deadline(std::chrono::system_clock::now() + time);
  thread_ = std::thread([this, bench, request] {
    const auto reader = bench->stub->Generate(&context_, request);
    for (v1::GenerateResponse response; reader->Read(&response);) {
      heard_.Take(response);
      tokens_ = static_cast<int>(heard_.ids.size());
      scores_ = static_cast<int>(heard_.scores.size());
    }
    heard_.status = reader->Finish();
  });
}

const Heard& Call::End() {
  if (thread_.joinable()) thread_.join();
  return heard_;
}

engine::v1::GenerateRequest Replace(Bench* bench, const FakeScript& script) {
  const std::string address = bench->engine->address();
  const engine::v1::GenerateRequest asked = bench->engine->last_request();
  bench->engine->Kill();
  bench->engine = std::make_unique<FakeEngine>(address);
  bench->engine->set_script(script);
  return asked;
}

}  // namespace weft::server
