// The text side of a model folder: tokenizer, chat encoding, stop tokens, default sampling.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "server/text/chat.h"
#include "server/text/tokenizer.h"

namespace weft::text {

// As generation_config.json states them, with Hugging Face's defaults: greedy unless do_sample.
struct SamplingDefaults {
  float temperature = 0;  // 0: greedy
  float top_p = 1;
  int64_t top_k = 0;             // 0: no limit
  float repetition_penalty = 1;  // 1: off; of greedy generation too
};

struct TextModel {
  std::unique_ptr<const Tokenizer> tokenizer;
  std::optional<ChatEncoder> chat;  // none: the model's chat encoding is not known
  std::string chat_warning;         // what the operator should know of the choice; "": nothing
  std::string model_type;
  std::optional<int32_t> bos_id;
  std::vector<int32_t> eos_ids;  // generation ends with any of these; ascending, at least one
  bool add_bos = false;          // a raw prompt gets bos_id; chat prompts always carry their own
  SamplingDefaults sampling;
  int64_t max_positions = 0;  // longest sequence, prompt and reply together
  int64_t vocab_size = 0;     // rows of the model's output; >= tokenizer->size()

  // Reads tokenizer.json, tokenizer_config.json, config.json and, when there,
  // generation_config.json. `chat_encoding` "" chooses by the folder's template and model_type.
  // Throws std::runtime_error naming file, rule and value.
  static TextModel FromFolder(const std::filesystem::path& folder,
                              std::string_view chat_encoding = "");

  // A raw prompt, with BOS when the model wants it; of one that has more than `most` tokens so many
  // and the rest of a word. What it has when `stop` is requested.
  std::vector<int32_t> EncodePrompt(std::string_view utf8, size_t most = Tokenizer::kAll,
                                    std::stop_token stop = {}) const;

  bool IsEos(int32_t id) const;
};

}  // namespace weft::text
