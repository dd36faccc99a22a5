// weft-chat's command line.
#pragma once

#include <string>

#include "weft/v1/inference.pb.h"

namespace weft::chat {

struct Options {
  std::string server = "127.0.0.1:8730";
  std::string question;  // -q
  bool has_question = false;
  std::string file;
  std::string system;
  bool thinking = false;
  bool stats = false;
  bool json = false;
  double resume_seconds = 30;
  v1::ChatRequest request;  // sampling and selection; no messages
};

// Returns -1 to go on, else the code to exit with, everything printed.
int ParseOptions(int argc, char** argv, Options* options);

}  // namespace weft::chat
