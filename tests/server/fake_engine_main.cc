// weft-fake-engine: a process in the place of weft-engine, for tests of the launcher.
//
// Takes weft-engine's --model and --listen and ignores the rest. WEFT_FAKE_EXIT=N: ends with code N
// instead of getting ready; WEFT_FAKE_DELAY_MS: time before each token.
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <string>

#include "tests/server/fake_engine.h"

int main(int argc, char** argv) {
  std::string listen;
  for (int i = 1; i + 1 < argc; ++i) {
    if (std::strcmp(argv[i], "--listen") == 0) listen = argv[i + 1];
  }
  if (const char* code = std::getenv("WEFT_FAKE_EXIT")) {
    std::cerr
        << "2026-11-29T22:46:39.123Z [rank 0] error: model.layers.3.mlp.gate.weight is missing\n";
    return std::atoi(code);
  }
  weft::server::FakeEngine engine(listen);
  if (const char* delay = std::getenv("WEFT_FAKE_DELAY_MS")) {
    weft::server::FakeScript script;
    script.delay = std::chrono::milliseconds(std::atoi(delay));
    engine.set_script(script);
  }
  engine.Wait();
}
