#include "tests/server/shell.h"

#include <stdexcept>

#include "server/launch/child_process.h"
#include "tests/server/test_model.h"

namespace weft::server {

using std::chrono::seconds;

Ran Shell(const std::string& line) {
  TempFolder folder;
  const std::string out = (folder.path() / "out").string();
  const std::string err = (folder.path() / "err").string();
  std::string error;
  const auto child = ChildProcess::Start({"bash", "-c", "{ " + line + "; } >" + out + " 2>" + err},
                                         seconds(2), &error);
  if (child == nullptr) throw std::runtime_error("cannot run " + line + ": " + error);
  const auto exit = child->WaitFor(seconds(60));
  if (!exit) throw std::runtime_error("still runs: " + line);
  return {exit->signal != 0 ? 128 + exit->signal : exit->code, ReadFile(out), ReadFile(err)};
}

}  // namespace weft::server
