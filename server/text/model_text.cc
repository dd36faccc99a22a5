#include "server/text/model_text.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <utility>

#include "server/text/chat/template_match.h"
#include "server/text/json_file.h"

namespace weft::text {
namespace {

namespace fs = std::filesystem;

// tokenizer_config.json writes a token as a string or as {"content": ...}.
std::optional<int32_t> TokenOf(const JsonFile& file, const char* key, const Tokenizer& tokenizer) {
  const nlohmann::json* value = file.Find(key);
  if (value == nullptr) return std::nullopt;
  if (value->is_object() && value->contains("content")) value = &(*value)["content"];
  if (!value->is_string()) file.Fail(key, "a string or an object with content");
  const std::optional<int32_t> id = tokenizer.TokenId(value->get_ref<const std::string&>());
  if (!id) file.Fail(key, "a token of tokenizer.json");
  return id;
}

// An id, or a list of them, as eos_token_id is written.
std::vector<int32_t> TokenIds(const JsonFile& file, const char* key, int64_t vocab_size) {
  const nlohmann::json* value = file.Find(key);
  if (value == nullptr) return {};
  std::vector<int32_t> ids;
  for (const nlohmann::json& id : value->is_array() ? *value : nlohmann::json::array({*value})) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() >= vocab_size) {
      file.Fail(key, "an id, or a list of ids, in [0, " + std::to_string(vocab_size) + ")");
    }
    ids.push_back(id.get<int32_t>());
  }
  return ids;
}

int64_t Positive(const JsonFile& file, const char* key) {
  const std::optional<int64_t> value = file.Integer(key);
  if (!value || *value <= 0) file.Fail(key, "a positive integer");
  return *value;
}

// Requests carry these as floats, in which what is tiny is 0 and what is vast infinite.
float Float(const JsonFile& file, const char* key, float fallback) {
  const std::optional<double> value = file.Number(key);
  if (!value) return fallback;
  const bool vast = std::abs(*value) > std::numeric_limits<float>::max();
  const float held = vast ? 0 : static_cast<float>(*value);
  if ((held == 0) != (*value == 0)) file.Fail(key, "0, or from 1e-45 to 3.4e38 in size");
  return held;
}

SamplingDefaults Sampling(const JsonFile& file) {
  SamplingDefaults sampling;
  sampling.repetition_penalty = Float(file, "repetition_penalty", 1);
  if (!(sampling.repetition_penalty > 0)) file.Fail("repetition_penalty", "above 0");
  if (!file.Bool("do_sample").value_or(false)) return sampling;
  sampling.temperature = Float(file, "temperature", 1);
  sampling.top_p = Float(file, "top_p", 1);
  sampling.top_k = file.Integer("top_k").value_or(0);
  if (!(sampling.temperature >= 0)) file.Fail("temperature", "at least 0");
  if (!(sampling.top_p > 0 && sampling.top_p <= 1)) file.Fail("top_p", "in (0, 1]");
  if (sampling.top_k < 0) file.Fail("top_k", "at least 0");
  return sampling;
}

}  // namespace

TextModel TextModel::FromFolder(const fs::path& folder, std::string_view chat_encoding) {
  if (!fs::is_directory(folder)) {
    throw std::runtime_error(folder.string() + ": must be a model folder; there is none");
  }
  const JsonFile config(folder / "config.json");
  const JsonFile tokenizer_config(folder / "tokenizer_config.json");
  TextModel model;
  model.tokenizer =
      std::make_unique<const Tokenizer>(Tokenizer::FromFile(folder / "tokenizer.json"));
  const Tokenizer& tokenizer = *model.tokenizer;

  model.model_type = config.String("model_type").value_or("");
  model.max_positions = Positive(config, "max_position_embeddings");
  model.vocab_size = Positive(config, "vocab_size");
  if (model.vocab_size < tokenizer.size()) {
    config.Fail("vocab_size", "at least " + std::to_string(tokenizer.size()) +
                                  ", the number of tokens in tokenizer.json");
  }

  model.bos_id = TokenOf(tokenizer_config, "bos_token", tokenizer);
  model.add_bos = tokenizer_config.Bool("add_bos_token").value_or(false);
  if (model.add_bos && !model.bos_id) {
    tokenizer_config.Fail("bos_token", "set, since add_bos_token is true");
  }

  // As in transformers, the generation configuration goes before the model's; the tokenizer's EOS
  // ends generation in any case.
  if (const fs::path path = folder / "generation_config.json"; fs::exists(path)) {
    const JsonFile generation(path);
    model.eos_ids = TokenIds(generation, "eos_token_id", model.vocab_size);
    model.sampling = Sampling(generation);
  }
  if (model.eos_ids.empty()) model.eos_ids = TokenIds(config, "eos_token_id", model.vocab_size);
  if (const auto eos = TokenOf(tokenizer_config, "eos_token", tokenizer)) {
    model.eos_ids.push_back(*eos);
  }
  if (model.eos_ids.empty()) config.Fail("eos_token_id", "set here or in generation_config.json");
  std::sort(model.eos_ids.begin(), model.eos_ids.end());
  model.eos_ids.erase(std::unique(model.eos_ids.begin(), model.eos_ids.end()), model.eos_ids.end());

  ChatChoice choice = {std::string(chat_encoding), ""};
  if (chat_encoding.empty()) {
    choice = ChooseChatEncoding(folder, tokenizer_config, model.model_type);
  }
  model.chat_warning = std::move(choice.warning);
  if (!choice.encoding.empty()) model.chat.emplace(choice.encoding, tokenizer);
  return model;
}

std::vector<int32_t> TextModel::EncodePrompt(std::string_view utf8, size_t most,
                                             std::stop_token stop) const {
  std::vector<int32_t> ids = tokenizer->Encode(utf8, true, most, std::move(stop));
  if (add_bos) ids.insert(ids.begin(), *bos_id);
  return ids;
}

bool TextModel::IsEos(int32_t id) const {
  return std::binary_search(eos_ids.begin(), eos_ids.end(), id);
}

}  // namespace weft::text
