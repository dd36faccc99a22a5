#include "tests/server/test_model.h"

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "server/text/byte_level.h"

namespace weft::server {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kSpecial[] = {"<｜begin▁of▁sentence｜>",
                                    "<｜end▁of▁sentence｜>",
                                    "<｜User｜>",
                                    "<｜Assistant｜>",
                                    "<think>",
                                    "</think>"};

json Tokenizer() {
  json vocabulary = json::object();
  for (int byte = 0; byte < 256; ++byte) {
    vocabulary[text::SpellByte(static_cast<unsigned char>(byte))] = byte;
  }
  json added = json::array();
  for (int i = 0; i < 6; ++i) {
    added.push_back({{"id", kBos + i},
                     {"content", kSpecial[i]},
                     {"special", i < 4},
                     {"normalized", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"single_word", false}});
  }
  const json byte_level = {{"type", "ByteLevel"},
                           {"add_prefix_space", false},
                           {"trim_offsets", true},
                           {"use_regex", false}};
  return {{"version", "1.0"},
          {"normalizer", nullptr},
          {"pre_tokenizer", byte_level},
          {"post_processor", nullptr},
          {"decoder", byte_level},
          {"added_tokens", added},
          {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", json::array()}}}};
}

}  // namespace

TempFolder::TempFolder() {
  std::string name = (fs::temp_directory_path() / "weft-test-XXXXXX").string();
  path_ = mkdtemp(name.data());
}

TempFolder::~TempFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

void WriteFile(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

std::string ReadFile(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

std::string WriteTestModel(const fs::path& folder) {
  fs::create_directories(folder);
  WriteFile(folder / "tokenizer.json", Tokenizer().dump());
  WriteFile(
      folder / "tokenizer_config.json",
      json{{"bos_token", kSpecial[0]}, {"eos_token", kSpecial[1]}, {"add_bos_token", true}}.dump());
  WriteFile(folder / "config.json", json{{"model_type", "deepseek_v32"},
                                         {"vocab_size", kVocabulary},
                                         {"max_position_embeddings", 4096}}
                                        .dump());
  return folder.string();
}

}  // namespace weft::server
