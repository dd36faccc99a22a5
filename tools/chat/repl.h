// The interactive session.
#pragma once

#include "tools/chat/client.h"
#include "tools/chat/options.h"
#include "tools/chat/session.h"

namespace weft::chat {

// Until /bye or the end of input. Returns the exit code.
int RunRepl(const Options& options, Client* client, Session* session);

}  // namespace weft::chat
