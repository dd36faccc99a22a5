// All that is needed to go on with a request, or one choice of it, on another engine.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/api/resolve.h"
#include "server/text/reply/reply_parser.h"
#include "weft/engine/v1/engine.pb.h"

namespace weft::server {

struct RequestState {
  // As resolved: prompt, seed, sampling, limits; and for a replay what PrepareReplay() made of it.
  // Its request_id is the engine's, one for each choice.
  engine::v1::GenerateRequest request;
  std::string id;                                      // the client's
  int index = 0;                                       // of the choice
  google::protobuf::RepeatedField<int32_t> committed;  // output ids so far, in order
  std::optional<engine::v1::Admitted> admitted;        // what the engine made of the wishes
  std::optional<text::ReplySyntax> reply;              // of a chat: how its text is taken apart
  int scored = 0;                                      // prompt index behind the last score, or 0
  int replays = 0;
  int resumes = 0;  // earlier streams of the same request
  int ranks = 0;    // G of the engine it runs on
  std::chrono::steady_clock::time_point arrival = std::chrono::steady_clock::now();

  // Some of the answer is with the client, or on its way there.
  bool begun() const { return !committed.empty() || scored > 0; }
};

// Of each choice of a request, before any engine had it.
std::vector<RequestState> FirstStates(const Resolved& resolved);

// Makes `request` what the next engine is to go on with: the output so far as committed_ids, what
// the last engine resolved as honour, scores from where they ended.
void GoOnBehind(RequestState* state);

}  // namespace weft::server
