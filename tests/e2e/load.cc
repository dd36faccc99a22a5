#include "tests/e2e/load.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

namespace weft::e2e {

std::vector<std::string> Prompts(int64_t max_tokens, size_t max_bytes) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry :
       std::filesystem::directory_iterator(WEFT_SOURCE_DIR "/deploy/examples")) {
    if (entry.path().extension() == ".jsonl") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  std::vector<std::string> prompts;
  for (const auto& file : files) {
    std::ifstream in(file);
    const nlohmann::json json = nlohmann::json::parse(in);
    if (json.at("document_tokens").get<int64_t>() > max_tokens) continue;
    for (const auto& turn : json.at("turns")) {
      const std::string document = json.at("document").get<std::string>().substr(0, max_bytes);
      prompts.push_back("<｜begin▁of▁sentence｜><｜User｜>" + document + "\n\n" +
                        turn.at("question").get<std::string>() + "<｜Assistant｜></think>");
    }
  }
  return prompts;
}

namespace {

// Each alone, then with all else that shapes the draw.
void AddPenalties(int i, v1::Sampling* sampling) {
  const bool all = i % 8 == 7;
  if (all || i % 8 == 1) sampling->set_repetition_penalty(1.1f);
  if (all || i % 8 == 3) sampling->set_frequency_penalty(0.2f);
  if (all || i % 8 == 5) sampling->set_presence_penalty(0.3f);
  if (!all) return;
  sampling->set_top_k(50);
  sampling->set_min_p(0.001f);
  (*sampling->mutable_logit_bias())[300] = 1;
  sampling->set_min_tokens(30);
  sampling->add_stop(" of the");
}

}  // namespace

Wish MakeWish(int i, const std::vector<std::string>& prompts, bool leavers, std::mt19937* random) {
  const auto draw = [&](int n) { return static_cast<int>((*random)() % static_cast<unsigned>(n)); };
  Wish wish;
  v1::GenerateRequest& request = wish.request;
  request.set_request_id("load-" + std::to_string(i));
  request.set_text(prompts[static_cast<size_t>(draw(static_cast<int>(prompts.size())))]);
  v1::Sampling* sampling = request.mutable_sampling();
  sampling->set_temperature(0);
  if (i % 2 == 1) {
    sampling->set_temperature(i % 4 == 1 ? 0.8f : 1.3f);
    sampling->set_top_p(i % 8 < 4 ? 0.9f : 1.0f);
    sampling->set_seed((*random)());
  }
  AddPenalties(i, sampling);
  if (i % 6 == 2) sampling->add_stop("the");
  if (i % 4 >= 2) sampling->set_logprobs(static_cast<uint32_t>(i % 4));
  sampling->set_max_tokens(120);
  sampling->set_ignore_eos(i % 5 != 0);
  static constexpr const char* kModes[] = {"exact", "interleaved", "certified", "dense", ""};
  request.mutable_selection()->set_mode(kModes[i % 5]);
  if (i % 4 < 2) request.mutable_selection()->set_index_topk(64);
  if (i % 7 == 3) request.set_logprobs_from(1 + draw(100));
  if (!leavers) return wish;
  if (i % 6 == 4) wish.cancel_at = draw(100);
  if (i % 16 == 7) wish.time = std::chrono::milliseconds(200 + draw(4000));
  if (i % 16 == 9) wish.pause = std::chrono::milliseconds(30);
  return wish;
}

std::string Describe(const v1::GenerateRequest& request) {
  const v1::Sampling& sampling = request.sampling();
  return request.request_id() + ": " + request.selection().mode() +
         " K=" + std::to_string(request.selection().index_topk()) +
         " T=" + std::to_string(sampling.temperature()) +
         " seed=" + std::to_string(sampling.seed()) + (sampling.ignore_eos() ? " ignore_eos" : "") +
         (request.has_logprobs_from() ? " scored" : "") + ", prompt of " +
         std::to_string(request.text().size()) + " bytes";
}

void Door::Lead(v1::Inference::Stub* stub) {
  const std::lock_guard lock(mutex_);
  stub_ = stub;
  changed_.notify_all();
}

v1::Inference::Stub* Door::stub() const {
  const std::lock_guard lock(mutex_);
  return stub_;
}

v1::Inference::Stub* Door::Next(const v1::Inference::Stub* lost) const {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::minutes(1), [&] { return stub_ != lost; });
  return stub_ == lost ? nullptr : stub_;
}

Stream::Stream(Door* door, Wish wish)
    : door_(door),
      wish_(std::move(wish)),
      deadline_(std::chrono::system_clock::now() + wish_.time),
      thread_([this] { Run(); }) {}

Stream::~Stream() { Join(); }

void Stream::Join() {
  if (thread_.joinable()) thread_.join();
}

void Stream::Run() {
  v1::Inference::Stub* stub = door_->stub();
  reply_.status = Read(stub);
  while (reply_.status.error_code() == grpc::StatusCode::UNAVAILABLE && !left_) {
    stub = door_->Next(stub);
    if (stub == nullptr) break;
    ++resumes_;
    reply_.status = Read(stub);
  }
  if (reply_.status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) left_ = true;
  ended_ = true;
}

grpc::Status Stream::Read(v1::Inference::Stub* stub) {
  grpc::ClientContext context;
  context.set_deadline(deadline_);
  v1::GenerateRequest request = wish_.request;
  if (position_.started()) *request.mutable_resume() = position_.resume();
  const auto reader = stub->Generate(&context, request);
  for (v1::GenerateResponse event; !left_ && reader->Read(&event);) {
    position_.Take(event);
    reply_.Take(event);
    tokens_ = static_cast<int>(reply_.tokens.size());
    if (wish_.cancel_at >= 0 && tokens_ >= wish_.cancel_at) {
      left_ = true;
      context.TryCancel();
    }
    std::this_thread::sleep_for(wish_.pause);
  }
  return reader->Finish();
}

}  // namespace weft::e2e
