// What every request works with.
#pragma once

#include <string>

#include "server/api/request_gate.h"
#include "server/api/text_workers.h"
#include "server/backend/engine_pool.h"
#include "server/backend/waiting_room.h"
#include "server/text/model_text.h"

namespace weft::server {

struct Frontend {
  const text::TextModel& text;
  EnginePool& engines;
  WaitingRoom& room;
  RequestGate& gate;
  TextWorkers& prompt_workers;    // of requests
  TextWorkers& tokenize_workers;  // of Tokenize, whose texts have no bound
  std::string model_name;         // the folder's last name
  size_t stream_buffer;           // bytes that may wait for one client
};

}  // namespace weft::server
