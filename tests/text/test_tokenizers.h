// The tokenizers of the text tests, loaded once.
#pragma once

#include <catch2/catch.hpp>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

#include "server/text/byte_level.h"
#include "server/text/tokenizer.h"

namespace weft::text {

inline const std::filesystem::path kTextData =
    std::filesystem::path(WEFT_SOURCE_DIR) / "tests" / "text" / "data";
inline const std::filesystem::path kDemoModel =
    std::filesystem::path(WEFT_SOURCE_DIR) / "deploy" / "models" / "demo";

template <typename Json>
Json ReadGzip(const std::filesystem::path& path) {
  const std::string command = "gzip -dc '" + path.string() + "'";
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  if (pipe == nullptr) throw std::runtime_error("cannot run: " + command);
  std::string text;
  char buffer[1 << 16];
  while (const size_t n = fread(buffer, 1, sizeof(buffer), pipe.get())) text.append(buffer, n);
  return Json::parse(text);
}

inline nlohmann::json ReadGzipJson(const std::filesystem::path& path) {
  return ReadGzip<nlohmann::json>(path);
}

inline const Tokenizer& DeepSeekV3() {
  static const Tokenizer tokenizer =
      Tokenizer::FromJson(ReadGzipJson(kTextData / "deepseek-v3-tokenizer.json.gz"));
  return tokenizer;
}

// With the two marks that came with V3.1, under free ids.
inline const Tokenizer& DeepSeekV3Thinking() {
  static const Tokenizer tokenizer = [] {
    nlohmann::json json = ReadGzipJson(kTextData / "deepseek-v3-tokenizer.json.gz");
    int id = 128900;
    for (const char* mark : {"<think>", "</think>"}) {
      nlohmann::json token = json["added_tokens"].back();
      token["content"] = mark;
      token["id"] = id++;
      json["added_tokens"].push_back(token);
    }
    return Tokenizer::FromJson(json);
  }();
  return tokenizer;
}

// Trained here, with the pre-tokenizer and added tokens of GLM-4.5 to GLM-5.
inline const Tokenizer& Glm() {
  static const Tokenizer tokenizer =
      Tokenizer::FromJson(ReadGzipJson(kTextData / "glm-tokenizer.json.gz"));
  return tokenizer;
}

inline const Tokenizer& Demo() {
  static const Tokenizer tokenizer = Tokenizer::FromFile(kDemoModel / "tokenizer.json");
  return tokenizer;
}

inline nlohmann::json ReadJson(const std::filesystem::path& path) {
  std::ifstream file(path);
  return nlohmann::json::parse(file);
}

// A tokenizer.json with every byte, the given extra tokens ("left right" merges make them) and no
// split; tests change what they are about.
inline nlohmann::json TinyTokenizerJson(const std::vector<std::string>& merges) {
  nlohmann::json vocab = nlohmann::json::object();
  for (int byte = 0; byte < 256; ++byte) vocab[SpellByte(static_cast<unsigned char>(byte))] = byte;
  int next = 256;
  for (std::string merge : merges) {
    merge.erase(merge.find(' '), 1);
    vocab[merge] = next++;
  }
  return {
      {"normalizer", nullptr},
      {"added_tokens", nlohmann::json::array()},
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}},
      {"decoder", {{"type", "ByteLevel"}}},
      {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}}}};
}

// What the expression throws, or "" when it does not.
template <typename F>
std::string MessageOf(F f) {
  try {
    f();
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

}  // namespace weft::text
