// Loading a model folder's text side, whole and broken.
#include "server/text/model_text.h"

#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>

#include "tests/text/test_tokenizers.h"

namespace weft::text {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::EndsWith;
using Json = nlohmann::json;
namespace fs = std::filesystem;

// A copy of the demo model's text files, removed at the end.
class Folder {
 public:
  Folder() : path_(fs::temp_directory_path() / ("weft-text-" + std::to_string(getpid()))) {
    fs::remove_all(path_);
    fs::create_directory(path_);
    for (const char* name :
         {"config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"}) {
      std::ofstream(path_ / name) << std::ifstream(kDemoModel / name).rdbuf();
    }
  }
  ~Folder() { fs::remove_all(path_); }

  const fs::path& path() const { return path_; }

  void Write(const char* name, const std::string& text) { std::ofstream(path_ / name) << text; }

  // Sets one key of a file; null removes it.
  void Set(const char* name, const char* key, const Json& value) {
    Json json = ReadJson(path_ / name);
    json[key] = value;
    Write(name, json.dump());
  }

  TextModel Load() const { return TextModel::FromFolder(path_); }
  std::string Error() const {
    return MessageOf([this] { Load(); });
  }

 private:
  fs::path path_;
};

TEST_CASE("model_text: the demo model", "[text]") {
  const TextModel model = TextModel::FromFolder(kDemoModel);
  CHECK(model.model_type == "deepseek_v32");
  CHECK(model.bos_id == 0);
  CHECK(model.eos_ids == std::vector<int32_t>{1});
  CHECK(model.IsEos(1));
  CHECK_FALSE(model.IsEos(0));
  CHECK(model.add_bos);
  CHECK(model.sampling.temperature == 0.0);
  CHECK(model.max_positions == 131072);
  CHECK(model.vocab_size == 4096);
  REQUIRE(model.chat.has_value());
  CHECK(model.EncodePrompt("</think>") == std::vector<int32_t>{0, 3967});
  CHECK(model.EncodePrompt("") == std::vector<int32_t>{0});
}

TEST_CASE("model_text: a moved model keeps its chat encoder's tokenizer", "[text]") {
  TextModel first = TextModel::FromFolder(kDemoModel);
  const TextModel second = std::move(first);
  const std::vector<Message> messages = {{"user", "Hi"}};
  CHECK(second.chat->Encode(messages, {}).value().ids.front() == 0);
}

TEST_CASE("model_text: stop tokens and sampling", "[text]") {
  Folder folder;
  folder.Set("generation_config.json", "eos_token_id", {5, 3, 5});
  folder.Set("generation_config.json", "temperature", 0.6);
  CHECK(folder.Load().eos_ids == std::vector<int32_t>{1, 3, 5});
  CHECK(folder.Load().sampling.temperature == 0.0);  // do_sample is false
  folder.Set("generation_config.json", "do_sample", true);
  folder.Set("generation_config.json", "top_p", 0.95);
  CHECK(folder.Load().sampling.temperature == 0.6f);
  CHECK(folder.Load().sampling.top_p == 0.95f);
  CHECK(folder.Load().sampling.repetition_penalty == 1.0);
  folder.Set("generation_config.json", "repetition_penalty", 1.25);
  CHECK(folder.Load().sampling.repetition_penalty == 1.25);

  fs::remove(folder.path() / "generation_config.json");
  folder.Set("config.json", "eos_token_id", 7);
  CHECK(folder.Load().eos_ids == std::vector<int32_t>{1, 7});
  CHECK(folder.Load().sampling.temperature == 0.0);
}

TEST_CASE("model_text: the chat encoding is the folder's unless one is named", "[text]") {
  Folder folder;
  CHECK(folder.Load().chat->name() == "deepseek_v32");
  CHECK(folder.Load().chat_warning.empty());
  folder.Set("tokenizer_config.json", "chat_template", nullptr);
  CHECK(folder.Load().chat->name() == "deepseek_v32");
  CHECK(folder.Load().chat_warning.empty());
  folder.Set("config.json", "model_type", "glm_moe_dsa");
  CHECK_FALSE(folder.Load().chat.has_value());
  CHECK_THAT(folder.Load().chat_warning, Contains("model_type 'glm_moe_dsa'") &&
                                             Contains("deepseek_v32, deepseek_v31, deepseek_v3, "
                                                      "glm47, glm5, glm52"));
  CHECK(TextModel::FromFolder(folder.path(), "deepseek_v32").chat.has_value());
  CHECK_THAT(MessageOf([&] { TextModel::FromFolder(folder.path(), "chatml"); }),
             Contains("got \"chatml\""));
}

TEST_CASE("model_text: a template that is not known is named in a warning", "[text]") {
  Folder folder;
  const std::string known = ReadJson(folder.path() / "tokenizer_config.json")["chat_template"];
  folder.Write("chat_template.jinja", known + "\r\n");  // goes before tokenizer_config.json's
  CHECK(folder.Load().chat_warning.empty());
  folder.Write("chat_template.jinja", known + "!");
  CHECK(folder.Load().chat->name() == "deepseek_v32");
  CHECK_THAT(folder.Load().chat_warning,
             Contains("chat_template.jinja differs from every known one: chats are encoded as "
                      "deepseek_v32"));
  CHECK(TextModel::FromFolder(folder.path(), "deepseek_v31").chat->name() == "deepseek_v31");
  CHECK(TextModel::FromFolder(folder.path(), "deepseek_v31").chat_warning.empty());
  fs::remove(folder.path() / "chat_template.jinja");
  const auto choice = [&](const Json& value) {
    folder.Set("tokenizer_config.json", "chat_template", value);
    const TextModel model = folder.Load();
    return std::string(model.chat->name()) + (model.chat_warning.empty() ? "" : " (warned)");
  };
  CHECK(choice("x <｜tool▁calls▁begin｜> y") == "deepseek_v31 (warned)");
  CHECK(choice("x <｜tool▁calls▁begin｜> ```json") == "deepseek_v3 (warned)");
  CHECK(choice("<｜DSML｜invoke") == "deepseek_v32 (warned)");
  CHECK(choice({{{"name", "tool_use"}, {"template", "x"}},
                {{"name", "default"}, {"template", known}}}) == "deepseek_v32");
  folder.Set("tokenizer_config.json", "chat_template", 3);
  CHECK_THAT(folder.Error(), Contains("chat_template must be a string or a list; got 3"));
  folder.Set("tokenizer_config.json", "chat_template", "[gMASK]<sop>{{ x }}");
  CHECK_THAT(folder.Error(), Contains("chat encoding glm5 needs the token \"[gMASK]\""));
}

TEST_CASE("model_text: missing, empty and truncated files", "[text]") {
  CHECK_THAT(MessageOf([] { TextModel::FromFolder("/no/such/folder"); }),
             Contains("/no/such/folder"));
  for (const char* name : {"config.json", "tokenizer.json", "tokenizer_config.json"}) {
    Folder folder;
    const std::string whole = ReadJson(folder.path() / name).dump();
    folder.Write(name, whole.substr(0, whole.size() / 2));
    CHECK_THAT(folder.Error(), Contains(name) && Contains("valid JSON"));
    folder.Write(name, "");
    CHECK_THAT(folder.Error(), Contains(name) && Contains("not empty"));
    folder.Write(name, "[1]");
    CHECK_THAT(folder.Error(), Contains(name) && Contains("must be a JSON object; got array"));
    fs::remove(folder.path() / name);
    CHECK_THAT(folder.Error(), Contains(name) && Contains("No such file"));
  }
}

TEST_CASE("model_text: wrong values name file, key, rule and value", "[text]") {
  struct Case {
    const char* file;
    const char* key;
    Json value;
    const char* message;
  };
  const Case cases[] = {
      {"config.json", "max_position_embeddings", 0, "must be a positive integer; got 0"},
      {"config.json", "max_position_embeddings", nullptr, "must be a positive integer; got none"},
      {"config.json", "vocab_size", "x", "must be an integer; got \"x\""},
      {"config.json", "vocab_size", 100, "must be at least 3970"},
      {"config.json", "model_type", 3, "must be a string; got 3"},
      {"generation_config.json", "eos_token_id", 4096, "in [0, 4096); got 4096"},
      {"generation_config.json", "eos_token_id", Json::array({1, "x"}), "got [1,\"x\"]"},
      {"generation_config.json", "repetition_penalty", 0, "must be above 0; got 0"},
      {"generation_config.json", "do_sample", 1, "must be true or false; got 1"},
      {"tokenizer_config.json", "add_bos_token", "yes", "must be true or false; got \"yes\""},
      {"tokenizer_config.json", "bos_token", "<nope>", "must be a token of tokenizer.json"},
      {"tokenizer_config.json", "bos_token", nullptr, "must be set, since add_bos_token is true"},
      {"tokenizer.json", "pre_tokenizer", nullptr, "pre_tokenizer: must be an object"},
      {"tokenizer.json", "model", Json::object(), "type must be \"BPE\"; got null"},
      {"tokenizer.json", "added_tokens", Json::array({Json::object()}), "'id' not found"},
  };
  for (const Case& c : cases) {
    Folder folder;
    folder.Set(c.file, c.key, c.value);
    INFO(c.file << " " << c.key << " " << c.value);
    CHECK_THAT(folder.Error(), Contains(c.file) && Contains(c.message));
  }
  Folder folder;
  folder.Set("generation_config.json", "do_sample", true);
  folder.Set("generation_config.json", "top_p", 1.5);
  CHECK_THAT(folder.Error(), Contains("top_p must be in (0, 1]; got 1.5"));
  folder.Set("generation_config.json", "top_p", 1e-60);  // requests carry floats
  CHECK_THAT(folder.Error(), Contains("top_p must be 0, or from 1e-45 to 3.4e38 in size"));
  folder.Set("generation_config.json", "top_p", 1e-30);
  CHECK(folder.Load().sampling.top_p == 1e-30f);
  folder.Set("generation_config.json", "repetition_penalty", 1e300);
  CHECK_THAT(folder.Error(),
             Contains("repetition_penalty must be 0, or from 1e-45 to 3.4e38 in size; got 1e+300"));
}

TEST_CASE("model_text: files nested too deeply are refused", "[text]") {
  const auto nested = [](size_t depth, const std::string& open, const std::string& close) {
    std::string text;
    for (size_t i = 0; i < depth; ++i) text += open;
    text += "1";
    for (size_t i = 0; i < depth; ++i) text += close;
    return text;
  };
  const std::string list = nested(300000, "[", "]");
  const std::string sequence = nested(100000, R"({"type":"Sequence","normalizers":[)", "]}");
  const std::pair<const char*, std::string> cases[] = {
      {"generation_config.json", R"({"eos_token_id":)" + list + "}"},
      {"config.json", R"({"vocab_size":)" + list + "}"},
      {"tokenizer_config.json", R"({"bos_token":)" + list + "}"},
      {"tokenizer.json", R"({"normalizer":)" + sequence + "}"},
      {"tokenizer.json", R"({"pre_tokenizer":)" + sequence + "}"},
      {"tokenizer.json", R"({"decoder":)" + sequence + "}"},
      {"tokenizer.json", R"({"decoder":)" + nested(64, "[", "]") + "}"}};
  for (const auto& [file, text] : cases) {
    Folder folder;
    folder.Write(file, text);
    CHECK_THAT(folder.Error(), Contains(std::string(file) + ": is nested deeper than 64"));
  }
  Folder folder;  // one level less: what is wrong is told, cut
  folder.Write("generation_config.json", R"({"eos_token_id":)" + nested(63, "[", "]") + "}");
  CHECK_THAT(folder.Error(),
             EndsWith("got " + std::string(63, '[') + "1" + std::string(16, ']') + "..."));
}

TEST_CASE("model_text: what is no regular file is refused at once", "[text]") {
  for (const char* name : {"config.json", "tokenizer.json", "tokenizer_config.json",
                           "generation_config.json", "chat_template.jinja"}) {
    Folder folder;
    fs::remove(folder.path() / name);
    REQUIRE(mkfifo((folder.path() / name).c_str(), 0600) == 0);
    CHECK_THAT(folder.Error(), EndsWith(std::string(name) + ": is not a regular file"));
    fs::remove(folder.path() / name);
    fs::create_directory(folder.path() / name);
    CHECK_THAT(folder.Error(), EndsWith(std::string(name) + ": is not a regular file"));
  }
}

TEST_CASE("model_text: numbers that overflow name file and key", "[text]") {
  for (const char* name :
       {"config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"}) {
    Folder folder;
    folder.Write(name, R"({"top_p": 1e999})");
    CHECK_THAT(folder.Error(), Contains(std::string(name) + ": must be valid JSON; at key 'top_p' "
                                                            "or behind it: ") &&
                                   Contains("overflow"));
  }
}

TEST_CASE("model_text: what a file holds cannot steer a terminal", "[text]") {
  const std::string evil = "x\nnothing is wrong\x1b[2K\xc2\x9b\x7f" + std::string(500, 'y');
  const auto harmless = [](const std::string& text) {
    return std::all_of(text.begin(), text.end(), [](char c) { return ' ' <= c && c <= '~'; });
  };
  const std::tuple<const char*, const char*, Json> cases[] = {
      {"config.json", "model_type", Json::array({evil})},
      {"tokenizer_config.json", "bos_token", evil},
      {"tokenizer.json", "normalizer", {{"type", evil}}},
      {"tokenizer.json", "decoder", {{"type", evil}}},
      {"tokenizer.json", "pre_tokenizer", {{"type", evil}}},
      {"tokenizer.json", "model", {{"type", evil}}},
      {"tokenizer.json",
       "added_tokens",
       {{{"id", 1}, {"content", evil}}, {{"id", 2}, {"content", evil}}}}};
  for (const auto& [file, key, value] : cases) {
    Folder folder;
    folder.Set(file, key, value);
    const std::string error = folder.Error();
    INFO(error);
    CHECK(harmless(error));
    CHECK_THAT(error, Contains("x\\nnothing is wrong\\u001b[2K\\u009b\\u007fyy"));
    CHECK(error.size() < 400);
  }
  Folder folder;
  folder.Write("config.json", "{" + Json(evil).dump() + ": 1e999}");
  CHECK(harmless(folder.Error()));
  CHECK(folder.Error().size() < 500);
}

}  // namespace
}  // namespace weft::text
