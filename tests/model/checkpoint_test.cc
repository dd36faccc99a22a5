// Bad folders: each error names the file and, where there is one, the tensor.
#include "engine/model/checkpoint.h"

#include <catch2/catch.hpp>
#include <functional>

#include "engine/model/model_error.h"
#include "engine/model/weights.h"
#include "tests/model/tiny_model.h"

namespace weft {
namespace {

using Catch::Matchers::Contains;
using test::SafetensorsBytes;
using test::WriteFile;

const std::string kDemo = std::string(WEFT_SOURCE_DIR) + "/deploy/models/demo";

std::string ErrorOf(const std::function<void()>& action) {
  try {
    action();
  } catch (const ModelError& e) {
    return e.what();
  }
  return "no error";
}

std::string ReadError(const std::string& bytes) {
  const test::TempDir dir;
  WriteFile(dir / "x.safetensors", bytes);
  const std::string error = ErrorOf([&] { ReadSafetensors(dir / "x.safetensors"); });
  CHECK_THAT(error, Contains("x.safetensors"));
  return error;
}

// A header of one tensor "t", with eight bytes of data.
std::string ReadErrorOfEntry(const std::string& entry) {
  const std::string error = ReadError(SafetensorsBytes("{\"t\":" + entry + "}", "12345678"));
  CHECK_THAT(error, Contains("tensor 't'"));
  return error;
}

TEST_CASE("a well-formed file reads back") {
  const test::TempDir dir;
  test::WriteSafetensors(
      dir / "x.safetensors",
      {{"a", {"F32", {1, 2}, "12345678"}}, {"b", {"I64", {0, 3}, ""}}, {"c", {"BF16", {}, "xy"}}});
  const auto tensors = ReadSafetensors(dir / "x.safetensors");
  REQUIRE(tensors.size() == 3);
  std::map<std::string, Tensor> map;
  for (const Tensor& t : tensors) map[t.name] = t;
  CHECK(map["a"].shape == std::vector<int64_t>{1, 2});
  CHECK(map["a"].dtype() == DType::kF32);
  CHECK(std::string(static_cast<const char*>(map["a"].data), 8) == "12345678");
  CHECK(map["b"].bytes == 0);
  CHECK(map["c"].shape.empty());
  CHECK(map["c"].dtype() == DType::kBF16);
}

TEST_CASE("garbage in the header") {
  CHECK_THAT(ReadError(""), Contains("truncated: 0 bytes"));
  CHECK_THAT(ReadError("1234567"), Contains("truncated: 7 bytes"));
  CHECK_THAT(ReadError(std::string(64, '\xff')), Contains("header length 18446744073709551615"));
  CHECK_THAT(ReadError("this is not a safetensors file"), Contains("header length"));
  CHECK_THAT(ReadError(SafetensorsBytes("{\"t\":", "")), Contains("not valid JSON"));
  CHECK_THAT(ReadError(SafetensorsBytes("[]", "")), Contains("must be a JSON object"));
  CHECK_THAT(ReadError(SafetensorsBytes(std::string(100000, '['), "")),
             Contains("header is nested deeper than 64"));
  const std::string entry = R"({"dtype":"U8","shape":[4],"data_offsets":[0,4]})";
  CHECK_THAT(ReadError(SafetensorsBytes("{\"t\":" + entry + ",\"t\":" + entry + "}", "1234")),
             Contains("tensor 't': listed twice"));
}

TEST_CASE("entries that lie about their data") {
  CHECK_THAT(ReadErrorOfEntry("3"), Contains("must be a JSON object"));
  CHECK_THAT(ReadErrorOfEntry("{}"), Contains("dtype must be a string"));
  CHECK_THAT(ReadErrorOfEntry(R"({"dtype":"F32","data_offsets":[0,8]})"),
             Contains("shape must be"));
  CHECK_THAT(ReadErrorOfEntry(R"({"dtype":"F32","shape":[-2],"data_offsets":[0,8]})"),
             Contains("non-negative"));
  CHECK_THAT(ReadErrorOfEntry(R"({"dtype":"F32","shape":[2]})"), Contains("data_offsets must be"));
  CHECK_THAT(ReadErrorOfEntry(R"({"dtype":"F32","shape":[2],"data_offsets":[-8,0]})"),
             Contains("data_offsets must be"));
  CHECK_THAT(ReadErrorOfEntry(R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})"),
             Contains("must ascend, got 8 to 0"));
  CHECK_THAT(ReadErrorOfEntry(R"({"dtype":"F32","shape":[4],"data_offsets":[0,16]})"),
             Contains("exceed the file's 8 bytes of data: truncated?"));
  CHECK_THAT(ReadErrorOfEntry(R"({"dtype":"F32","shape":[3],"data_offsets":[0,8]})"),
             Contains("shape [3] of F32 does not fill its 8 bytes"));
  CHECK_THAT(ReadErrorOfEntry(R"({"dtype":"F32","shape":[4611686018427387904,4],)"
                              R"("data_offsets":[0,8]})"),
             Contains("does not fill"));
  CHECK_THAT(ReadError(SafetensorsBytes(R"({"a":{"dtype":"U8","shape":[5],"data_offsets":[0,5]},)"
                                        R"("b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
                                        "12345678")),
             Contains("tensor 'b': its data overlaps tensor 'a'"));
}

TEST_CASE("bytes that no tensor has") {
  const std::string header = R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                             R"("b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})";
  CHECK_THAT(ReadError(SafetensorsBytes(header, "12345678")),
             Contains("tensor 'b': its data must follow the data before it, got 2 bytes between"));
  const std::string less = R"({"a":{"dtype":"U8","shape":[7],"data_offsets":[0,7]}})";
  CHECK_THAT(ReadError(SafetensorsBytes(less, "12345678")),
             Contains("must end with its last tensor, got 1 bytes behind it"));
  CHECK_THAT(ReadError(SafetensorsBytes("{}", "x")), Contains("got 1 bytes behind it"));
  const test::TempDir dir;
  WriteFile(dir / "x.safetensors", SafetensorsBytes("{}", ""));
  CHECK(ReadSafetensors(dir / "x.safetensors").empty());
}

TEST_CASE("what a file holds cannot steer a terminal") {
  const std::string evil = "x\nnothing is wrong\x1b[2K\xc2\x9b\x7f" + std::string(500, 'y');
  const std::string name = nlohmann::json(evil).dump();
  const auto harmless = [](const std::string& error) {
    INFO(error);
    CHECK(std::all_of(error.begin(), error.end(), [](char c) { return ' ' <= c && c <= '~'; }));
    CHECK(error.size() < 400);
    CHECK_THAT(error, Contains("x\\nnothing is wrong\\u001b[2K\\u009b\\u007fyy"));
  };
  const std::string good = R"({"dtype":"U8","shape":[4],"data_offsets":[0,4]})";
  harmless(ReadError(SafetensorsBytes("{" + name + ":3}", "")));
  harmless(
      ReadError(SafetensorsBytes("{" + name + ":" + good + "," + name + ":" + good + "}", "1234")));
  harmless(ReadError(SafetensorsBytes("{" + name + ":" + good + ",\"b\":" + good + "}", "1234")));
  const test::TempDir dir;
  WriteFile(dir / "x.safetensors",
            SafetensorsBytes("{\"t\":{\"dtype\":" + name + R"(,"shape":[4],"data_offsets":[0,4]}})",
                             "1234"));
  harmless(ErrorOf([&] { ReadSafetensors(dir / "x.safetensors")[0].dtype(); }));
  for (const std::string& map : {"{\"a\":" + name + "}", "{" + name + ":3}"}) {
    WriteFile(dir / "model.safetensors.index.json", "{\"weight_map\":" + map + "}");
    harmless(ErrorOf([&] { CheckpointFolder folder(dir.path()); }));
  }
  WriteFile(dir / "model.safetensors.index.json", "{" + name + ":1e999}");
  harmless(ErrorOf([&] { CheckpointFolder folder(dir.path()); }));
}

TEST_CASE("unknown and misaligned types are errors only where they are used") {
  const test::TempDir dir;
  WriteFile(dir / "x.safetensors",
            SafetensorsBytes(R"({"a":{"dtype":"F3","shape":[9],"data_offsets":[0,1]},)"
                             R"("b":{"dtype":"F32","shape":[1],"data_offsets":[1,5]}})",
                             "12345"));
  const auto tensors = ReadSafetensors(dir / "x.safetensors");
  REQUIRE(tensors.size() == 2);
  CHECK_THAT(ErrorOf([&] { tensors[0].dtype(); }), Contains("tensor 'a'") && Contains("got F3"));
  CHECK_THAT(ErrorOf([&] { tensors[1].dtype(); }),
             Contains("tensor 'b'") && Contains("not aligned"));
}

TEST_CASE("folders: one file, indexed shards, listed shards") {
  CHECK(CheckpointFolder(kDemo).tensors().size() > 200);
  const test::TempDir dir;
  const auto open = [&] { CheckpointFolder folder(dir.path()); };
  CHECK_THAT(ErrorOf([] { CheckpointFolder folder("/nowhere"); }),
             Contains("/nowhere: is not a folder"));
  CHECK_THAT(ErrorOf(open), Contains("holds no model.safetensors"));

  test::WriteSafetensors(dir / "model-00001-of-00002.safetensors", {{"a", {"U8", {1}, "1"}}});
  CHECK_THAT(ErrorOf(open), Contains("model-00001-of-00002") && Contains("one of 2 shards, but 1"));
  test::WriteSafetensors(dir / "model-00002-of-00002.safetensors", {{"a", {"U8", {1}, "1"}}});
  CHECK_THAT(ErrorOf(open), Contains("tensor 'a': is also in"));
  test::WriteSafetensors(dir / "model-00002-of-00002.safetensors", {{"b", {"U8", {1}, "1"}}});
  CHECK(CheckpointFolder(dir.path()).tensors().size() == 2);
}

TEST_CASE("an index that does not fit its shards") {
  const test::TempDir dir;
  const auto with_index = [&](const std::string& text) {
    WriteFile(dir / "model.safetensors.index.json", text);
    return ErrorOf([&] { CheckpointFolder folder(dir.path()); });
  };
  test::WriteSafetensors(dir / "s1.safetensors", {{"a", {"U8", {1}, "1"}}});
  CHECK(with_index(R"({"weight_map": {"a": "s1.safetensors"}})") == "no error");
  CHECK_THAT(with_index("{"), Contains("index.json: is not valid JSON"));
  CHECK_THAT(with_index("{}"), Contains("'weight_map'"));
  CHECK_THAT(with_index(R"({"weight_map": {"a": )" + std::string(100000, '[')),
             Contains("index.json: is nested deeper than 64"));
  CHECK_THAT(with_index(R"({"weight_map": {"a": ")" + std::string(5000, 'x') + R"("}})"),
             Contains("xxx...: shard named by the index is missing"));
  test::WriteSafetensors(dir / "s1.safetensors",
                         {{"a", {"U8", {1}, "1"}}, {"b", {"U8", {1}, "1"}}});
  CHECK(with_index(R"({"weight_map": {"a": "s1.safetensors"}})") == "no error");
  const CheckpointFolder more(dir.path());
  CHECK(more.unlisted() == std::vector<std::string>{"b"});
  CHECK_THAT(UnlistedText(more), Contains("1 tensors are not in the index, such as 'b' of ") &&
                                     Contains("s1.safetensors"));
  test::WriteSafetensors(dir / "s1.safetensors", {{"a", {"U8", {1}, "1"}}});
  CHECK_THAT(with_index(R"({"weight_map": {"a": "../s1.safetensors"}})"),
             Contains("tensor 'a'") && Contains("file of this folder"));
  CHECK_THAT(with_index("{\"weight_map\": {\"a\": \"\xc2\x9b.safetensors\"}}"),  // C1: CSI
             Contains("printable ASCII, got \"\\u009b.safetensors\""));
  CHECK_THAT(with_index(R"({"weight_map": {"a": "s1.safetensors", "b": "s2.safetensors"}})"),
             Contains("s2.safetensors: shard named by the index is missing"));
  CHECK_THAT(with_index(R"({"weight_map": {"a": "s1.safetensors", "b": "s1.safetensors"}})"),
             Contains("s1.safetensors: tensor 'b'") && Contains("not in this file"));
}

TEST_CASE("a shard's file name cannot steer a terminal") {
  const test::TempDir dir;
  test::WriteSafetensors(dir / "model-\x1b[2J.safetensors", {{"a", {"U8", {1}, "1"}}});
  CHECK_THAT(ErrorOf([&] { CheckpointFolder folder(dir.path()); }),
             Contains("the name of 'model-\\u001b[2J.safetensors' must be printable ASCII"));
}

TEST_CASE("a truncated shard of the demo model") {
  const test::TempDir dir;
  std::filesystem::copy(kDemo, dir.path());
  const std::string shard = dir / "model-00002-of-00002.safetensors";
  std::filesystem::permissions(shard, std::filesystem::perms::owner_write,
                               std::filesystem::perm_options::add);
  std::filesystem::resize_file(shard, std::filesystem::file_size(shard) - 100);
  CHECK_THAT(ErrorOf([&] { CheckpointFolder folder(dir.path()); }),
             Contains("model-00002-of-00002") && Contains("tensor 'model.norm.weight'") &&
                 Contains("truncated?"));
}

class BadModel {
 public:
  BadModel() : config(ParseConfig(test::TinyConfig(), "config.json")) {
    tensors = test::TinyTensors(config, "BF16");
    test::WriteModel(dir, test::TinyConfig(), tensors);
  }
  std::string Error() {
    test::WriteModel(dir, test::TinyConfig(), tensors);
    return ErrorOf([&] { Load(); });
  }
  ModelWeights Load() { return LoadWeights(config, CheckpointFolder(dir.path()), 0, 2); }

  ModelConfig config;
  test::TensorMap tensors;
  test::TempDir dir;
};

TEST_CASE("every tensor of the model is required") {
  const BadModel good;
  for (const auto& [name, tensor] : good.tensors) {
    BadModel model;
    model.tensors.erase(name);
    CHECK_THAT(model.Error(), Contains("tensor '" + name + "': is missing"));
  }
}

TEST_CASE("every tensor's shape is checked") {
  const BadModel good;
  for (const auto& [name, tensor] : good.tensors) {
    BadModel model;
    model.tensors[name].shape.push_back(1);
    CHECK_THAT(model.Error(), Contains("model.safetensors: tensor '" + name + "': shape must be " +
                                       ShapeText(tensor.shape) + ", got"));
  }
}

TEST_CASE("every tensor's type is checked") {
  const BadModel good;
  for (const auto& [name, tensor] : good.tensors) {
    BadModel model;
    model.tensors[name].dtype = "I16";
    CHECK_THAT(model.Error(),
               Contains("tensor '" + name + "': dtype must be") && Contains("got I16"));
  }
  BadModel fp8;
  auto& norm = fp8.tensors["model.layers.1.self_attn.indexer.k_norm.weight"];
  norm.dtype = "F8_E4M3";
  norm.bytes.resize(norm.bytes.size() / 2);
  CHECK_THAT(fp8.Error(),
             Contains("indexer.k_norm.weight") && Contains("only matrices may be FP8"));
}

TEST_CASE("a tensor that the model does not have is an error, but for the MTP layer and inv_freq") {
  BadModel model;
  model.tensors["model.layers.2.eh_proj.weight"] = {"F32", {1}, "1234"};
  model.tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = {"F32", {1}, "1234"};
  CHECK(model.Error() == "no error");
  for (const char* name : {"model.layers.3.surprise", "model.layers.20.eh_proj.weight", "zzz.bias",
                           "model.layers.0.mlp.gate.weight", "lm_head.weight_scale_inv",
                           "model.layers.1.self_attn.indexer.more.weight"}) {
    BadModel extra;
    extra.tensors[name] = {"Q4", {3}, "12"};
    CHECK_THAT(extra.Error(), Contains("model.safetensors: tensor '" + std::string(name) +
                                       "': is not part of the model"));
  }
}

TEST_CASE("as many MTP layers are ignored as the config counts, one where it does not say") {
  BadModel model;
  for (const char* name : {"model.layers.2.eh_proj.weight", "model.layers.3.mlp.gate.weight"}) {
    model.tensors[name] = {"F32", {1}, "1234"};
  }
  nlohmann::json json = test::TinyConfig();
  const auto with = [&](int32_t layers) {
    json["num_nextn_predict_layers"] = layers;
    model.config = ParseConfig(json, "config.json");
    return model.Error();
  };
  CHECK_THAT(model.Error(), Contains("tensor 'model.layers.3.mlp.gate.weight': is not part"));
  CHECK_THAT(with(0), Contains("tensor 'model.layers.2.eh_proj.weight': is not part") &&
                          Contains("nor are 1 others"));
  CHECK_THAT(with(1), Contains("tensor 'model.layers.3.mlp.gate.weight': is not part"));
  CHECK(with(2) == "no error");
  model.tensors["model.layers.30.eh_proj.weight"] = {"F32", {1}, "1234"};
  CHECK_THAT(with(2), Contains("tensor 'model.layers.30.eh_proj.weight': is not part"));
}

TEST_CASE("norms and biases must be finite, in every type") {
  const std::string norm = "model.layers.1.self_attn.indexer.k_norm.bias";
  const std::string bias = "model.layers.1.mlp.gate.e_score_correction_bias";
  const struct {
    const char* dtype;
    uint32_t bits;
    const char* got;
  } cases[] = {{"F32", 0x7FC00000, "nan"}, {"F32", 0xFF800000, "-inf"}, {"BF16", 0xFFC1, "nan"},
               {"BF16", 0x7F80, "inf"},    {"F16", 0x7E00, "nan"},      {"F16", 0xFC00, "-inf"}};
  for (const auto& test : cases) {
    for (const std::string& name : {std::string("model.norm.weight"), norm, bias}) {
      BadModel model;
      model.tensors = test::TinyTensors(model.config, test.dtype);
      std::string& bytes = model.tensors[name].bytes;
      const size_t size = test.dtype == std::string("F32") ? 4 : 2;
      const size_t last = bytes.size() / size - 1;
      std::memcpy(bytes.data() + last * size, &test.bits, size);
      CAPTURE(test.dtype, test.got, name);
      const std::string rule = "model.safetensors: tensor '" + name +
                               "': must hold finite numbers, got " + test.got + " at " +
                               std::to_string(last);
      CHECK_THAT(model.Error(), Contains(rule) || Contains("got -nan at " + std::to_string(last)));
      const auto problems =
          CheckWeights(model.config, CheckpointFolder(model.dir.path()), 1, 2).problems;
      REQUIRE(problems.size() == 1);
      CHECK(problems[0] == model.Error());
    }
  }
}

TEST_CASE("a layer that shares indices needs no indexer, and ignores one that is there") {
  BadModel model;
  nlohmann::json json = test::TinyConfig();
  json["index_topk_pattern"] = "FS";
  model.config = ParseConfig(json, "config.json");
  CHECK_FALSE(model.Load().layers[1].indexer);
  std::erase_if(model.tensors, [](const auto& entry) {
    return entry.first.starts_with("model.layers.1.self_attn.indexer.");
  });
  CHECK(model.Error() == "no error");
  model.config = ParseConfig(test::TinyConfig(), "config.json");
  CHECK_THAT(model.Error(), Contains("layers.1.self_attn.indexer") && Contains("is missing"));
}

TEST_CASE("a check lists every problem, and the bytes of each rank") {
  BadModel model;
  const CheckpointFolder good(model.dir.path());
  const WeightsReport report = CheckWeights(model.config, good, 1, 3);
  CHECK(report.problems.empty());
  CHECK(report.bytes == LoadWeights(model.config, good, 1, 3).packed_bytes);
  model.tensors.erase("model.norm.weight");
  model.tensors.erase("model.layers.0.self_attn.kv_b_proj.weight");
  model.tensors["model.layers.1.mlp.gate.weight"].shape = {40, 4};
  model.tensors["model.layers.0.input_layernorm.weight"].dtype = "I16";
  model.tensors["model.embed_tokens.weight"].shape.push_back(1);
  model.tensors["surprise"] = {"U8", {1}, "1"};
  test::WriteModel(model.dir, test::TinyConfig(), model.tensors);
  const auto problems =
      CheckWeights(model.config, CheckpointFolder(model.dir.path()), 0, 2).problems;
  REQUIRE(problems.size() == 6);
  CHECK_THAT(problems[0], Contains("embed_tokens.weight': shape must be [200, 40]"));
  CHECK_THAT(problems[1], Contains("input_layernorm.weight': dtype must be"));
  CHECK_THAT(problems[2], Contains("kv_b_proj.weight': is missing"));
  CHECK_THAT(problems[3], Contains("gate.weight': shape must be [4, 40], got [40, 4]"));
  CHECK_THAT(problems[4], Contains("model.norm.weight': is missing"));
  CHECK_THAT(problems[5], Contains("surprise': is not part of the model"));
}

TEST_CASE("a router bias may be missing only where the config does not use one") {
  BadModel model;
  model.tensors.erase("model.layers.1.mlp.gate.e_score_correction_bias");
  CHECK_THAT(model.Error(), Contains("e_score_correction_bias': is missing"));
  nlohmann::json greedy = test::TinyConfig();
  greedy["topk_method"] = "greedy";
  model.config = ParseConfig(greedy, "config.json");
  CHECK(model.Load().layers[1].router_bias == std::vector<float>(4, 0.f));
}

TEST_CASE("the fingerprint follows names, bytes and config, not the shards") {
  const std::string demo = Fingerprint(CheckpointFolder(kDemo));
  CHECK(demo.size() == 16);
  CHECK(demo == Fingerprint(CheckpointFolder(kDemo)));

  BadModel model;
  CHECK(model.Error() == "no error");
  const std::string one = Fingerprint(CheckpointFolder(model.dir.path()));
  CHECK(one != demo);
  test::TensorMap first, second;
  for (const auto& [name, tensor] : model.tensors) {
    (first.size() < 9 ? first : second)[name] = tensor;
  }
  std::filesystem::remove(model.dir / "model.safetensors");
  test::WriteSafetensors(model.dir / "model-a.safetensors", first);
  test::WriteSafetensors(model.dir / "model-b.safetensors", second);
  CHECK(Fingerprint(CheckpointFolder(model.dir.path())) == one);

  first.begin()->second.bytes[first.begin()->second.bytes.size() / 2] ^= 1;
  test::WriteSafetensors(model.dir / "model-a.safetensors", first);
  const std::string touched = Fingerprint(CheckpointFolder(model.dir.path()));
  CHECK(touched != one);
  WriteFile(model.dir / "config.json", "{}");
  CHECK(Fingerprint(CheckpointFolder(model.dir.path())) != touched);
}

}  // namespace
}  // namespace weft
