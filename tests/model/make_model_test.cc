// The maker of checkpoints, and how the loader takes what it makes: FP8 slices mean what the
// dequantised checkpoint holds, whatever their phase in the scale grid.
#include "tools/make_model/make_model.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <functional>

#include "engine/model/checkpoint.h"
#include "engine/model/model_error.h"
#include "engine/model/weights.h"
#include "tests/model/tiny_model.h"
#include "tests/model/unpack.h"
#include "tools/make_model/tensor_list.h"

namespace weft {
namespace {

using Catch::Matchers::Contains;
using nlohmann::json;
using test::TempDir;
using test::Unpack;

// Heads of 192 rows in q_b and 448 in kv_b, so that every other one starts inside a block.
json Glm(int32_t heads = 5) {
  json c = test::TinyConfig();
  c.update(json::parse(R"({"hidden_size": 160, "num_hidden_layers": 3, "q_lora_rank": 144,
    "kv_lora_rank": 256, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "v_head_dim": 256,
    "index_head_dim": 128, "intermediate_size": 300, "moe_intermediate_size": 144,
    "index_topk_pattern": "FFS"})"));
  c["num_attention_heads"] = heads;
  return c;
}

std::string ErrorOf(const std::function<void()>& action) {
  try {
    action();
  } catch (const ModelError& e) {
    return e.what();
  }
  return "no error";
}

ModelWeights Load(const std::string& dir, int rank = 0, int ranks = 1,
                  Partition partition = Partition::kGather) {
  return LoadWeights(LoadConfig(dir), CheckpointFolder(dir), rank, ranks, partition);
}

// All packed matrices of a rank, in one order.
std::vector<const PackedMatrix*> MatricesOf(const ModelWeights& w) {
  std::vector<const PackedMatrix*> all;
  const auto mlp = [&](const MlpWeights& m) { all.insert(all.end(), {&m.gate, &m.up, &m.down}); };
  for (const LayerWeights& layer : w.layers) {
    all.insert(all.end(), {&layer.q_a, &layer.q_b, &layer.kv_a, &layer.o});
    for (const PackedMatrix& m : layer.w_k) all.push_back(&m);
    for (const PackedMatrix& m : layer.w_v) all.push_back(&m);
    if (layer.indexer) {
      all.insert(all.end(),
                 {&layer.indexer->wq_b, &layer.indexer->wk, &layer.indexer->weights_proj});
    }
    if (!layer.is_moe) {
      mlp(layer.mlp);
      continue;
    }
    all.push_back(&layer.router);
    for (const MlpWeights& expert : layer.experts) mlp(expert);
    mlp(layer.shared);
  }
  all.push_back(&w.lm_head);
  return all;
}

TEST_CASE("a made model loads, with shared indices, MTP layers and shards") {
  json config = Glm();
  config["num_nextn_predict_layers"] = 1;
  const TempDir dir, sharded, other;
  MakeModel(config, dir.path(), {});
  const CheckpointFolder folder(dir.path());
  CHECK(folder.Find("model.layers.3.eh_proj.weight"));
  CHECK(folder.Find("model.layers.1.self_attn.indexer.wk.weight"));
  CHECK_FALSE(folder.Find("model.layers.2.self_attn.indexer.wk.weight"));
  CHECK_NOTHROW(Load(dir.path(), 1, 3));

  MakeModel(config, sharded.path(), {.shard_bytes = 1 << 20});
  CHECK(std::filesystem::exists(sharded / "model.safetensors.index.json"));
  const CheckpointFolder shards(sharded.path());
  const std::string second = shards.At("model.layers.1.self_attn.o_proj.weight").file->path();
  CHECK_THAT(second, Contains("/model-0000") && Contains("-of-000"));
  CHECK((test::ToMap(shards.tensors()).size() == folder.tensors().size()));
  for (const auto& [name, tensor] : test::ToMap(folder.tensors())) {
    REQUIRE(tensor.bytes == test::ToMap(shards.tensors()).at(name).bytes);
  }
  MakeModel(config, other.path(), {.seed = 2});
  CHECK(test::ReadFile(other / "model.safetensors") != test::ReadFile(dir / "model.safetensors"));
  MakeModel(config, other.path(), {.seed = 1});
  CHECK(test::ReadFile(other / "model.safetensors") == test::ReadFile(dir / "model.safetensors"));
}

TEST_CASE("random numbers have the wanted mean and spread") {
  const TempDir dir;
  MakeModel(Glm(), dir.path(), {});
  const CheckpointFolder folder(dir.path());
  const auto check = [&](const std::string& name, double mean, double spread) {
    const auto values = test::Values(folder.At(name));
    double sum = 0, squares = 0;
    for (const float v : values) sum += v, squares += (v - mean) * (v - mean);
    const auto n = static_cast<double>(values.size());
    CAPTURE(name);
    CHECK(sum / n == Approx(mean).margin(4 * spread / std::sqrt(n)));
    CHECK(std::sqrt(squares / n) == Approx(spread).epsilon(4 / std::sqrt(n) + 0.01));
  };
  check("model.embed_tokens.weight", 0, 1);
  check("model.layers.0.self_attn.o_proj.weight", 0, 1.2 / std::sqrt(1280.0));
  check("model.layers.0.input_layernorm.weight", 1, 0.25);
}

TEST_CASE("names and shapes are those of the published checkpoints") {
  ModelConfig c = ParseConfig(test::TinyConfig(), "config.json");
  c.layers = 61, c.hidden = 7168, c.heads = 128, c.q_lora = 1536, c.kv_lora = 512;
  c.qk_nope = 128, c.qk_rope = 64, c.v_head = 128, c.n_routed_experts = 256;
  c.index_heads = 64, c.index_dim = 128, c.moe_intermediate = 2048;
  c.indexer_types.assign(61, IndexerType::kFull);
  c.is_moe.assign(61, true);
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const TensorSpec& spec : TensorsOf(c, 1)) shapes[spec.name] = spec.shape;
  const std::string attn = "model.layers.7.self_attn.";
  CHECK(shapes.at(attn + "q_b_proj.weight") == std::vector<int64_t>{24576, 1536});
  CHECK(shapes.at(attn + "kv_a_proj_with_mqa.weight") == std::vector<int64_t>{576, 7168});
  CHECK(shapes.at(attn + "kv_b_proj.weight") == std::vector<int64_t>{32768, 512});
  CHECK(shapes.at(attn + "o_proj.weight") == std::vector<int64_t>{7168, 16384});
  CHECK(shapes.at(attn + "indexer.wq_b.weight") == std::vector<int64_t>{8192, 1536});
  CHECK(shapes.at(attn + "indexer.weights_proj.weight") == std::vector<int64_t>{64, 7168});
  CHECK(shapes.at("model.layers.61.eh_proj.weight") == std::vector<int64_t>{7168, 14336});
  CHECK(shapes.at("model.layers.7.mlp.experts.255.down_proj.weight") ==
        std::vector<int64_t>{7168, 2048});
}

TEST_CASE("quantised weights are within half a step of the original") {
  const bool ue8m0 = GENERATE(false, true);
  const TempDir bf16, fp8, fp32;
  MakeModel(Glm(), bf16.path(), {});
  ConvertToFp8(bf16.path(), fp8.path(), {.ue8m0 = ue8m0});
  ConvertToFp32(fp8.path(), fp32.path(), {});
  const CheckpointFolder was(bf16.path()), is(fp32.path()), packed(fp8.path());
  CHECK(was.tensors().size() == is.tensors().size());
  for (const auto& [name, tensor] : was.tensors()) {
    const auto want = test::Values(tensor), got = test::Values(is.At(name));
    if (!IsProjection(name)) {
      REQUIRE(got == want);
      continue;
    }
    REQUIRE(packed.At(name).dtype() == DType::kF8E4M3);
    const auto scales = test::Values(packed.At(name + "_scale_inv"));
    const int64_t cols = tensor.shape[1], blocks = (cols + 127) / 128;
    int64_t far = 0, odd = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      const auto at = static_cast<int64_t>(i);
      const float scale = scales[static_cast<size_t>(at / cols / 128 * blocks + at % cols / 128)];
      const float step = std::max(std::abs(want[i]) / 16, scale * 0x1p-10f);
      far += std::abs(got[i] - want[i]) > step * 1.0001f;
      odd += std::exp2(std::round(std::log2(scale))) != scale;
    }
    CAPTURE(name);
    CHECK(far == 0);
    CHECK((odd == 0) == ue8m0);
  }
  const TempDir made;  // quantised at once, or later: bf16 rounding lies between
  MakeModel(Glm(), made.path(), {.fp8 = true});
  CHECK(CheckpointFolder(made.path()).tensors().size() == packed.tensors().size());
}

TEST_CASE("FP8 slices of every rank mean the dequantised checkpoint, bit for bit") {
  const int32_t heads = GENERATE(2, 5);
  const Partition partition =
      GENERATE(Partition::kGather, Partition::kReduceSplit, Partition::kReduceWhole);
  const TempDir fp8, fp32;
  MakeModel(Glm(heads), fp8.path(), {.fp8 = true});
  ConvertToFp32(fp8.path(), fp32.path(), {});
  for (const int ranks : {1, 2, 3, 4, 7}) {
    for (int rank = 0; rank < ranks; ++rank) {
      CAPTURE(heads, Name(partition), ranks, rank);
      const ModelWeights a = Load(fp8.path(), rank, ranks, partition);
      const ModelWeights b = Load(fp32.path(), rank, ranks, partition);
      const auto packed = MatricesOf(a), wide = MatricesOf(b);
      REQUIRE(packed.size() == wide.size());
      int64_t eights = 0;
      for (size_t i = 0; i < packed.size(); ++i) {
        REQUIRE(Unpack(*packed[i]) == Unpack(*wide[i]));
        eights += packed[i]->n > 0 && packed[i]->dtype == DType::kF8E4M3;
      }
      CHECK(eights > 20);
      // Kept as FP8: about a quarter of the bytes.
      CHECK(static_cast<double>(a.packed_bytes) < 0.4 * static_cast<double>(b.packed_bytes));
    }
  }
}

class BadFp8 {
 public:
  BadFp8() {
    MakeModel(Glm(2), dir.path(), {.fp8 = true});
    tensors = test::ToMap(CheckpointFolder(dir.path()).tensors());
  }
  std::string Error() {
    test::WriteSafetensors(dir / "model.safetensors", tensors);
    return ErrorOf([&] { Load(dir.path()); });
  }
  TempDir dir;
  test::TensorMap tensors;
  std::string name = "model.layers.1.self_attn.q_b_proj.weight";
};

TEST_CASE("what may be wrong with FP8 tensors") {
  BadFp8 model;
  const test::TensorMap good = model.tensors;
  const std::string scale = model.name + "_scale_inv";
  model.tensors[model.name].bytes[1234] = 0x7F;
  CHECK_THAT(model.Error(), Contains("tensor '" + model.name + "': holds a NaN"));
  model.tensors[model.name].bytes[1234] = static_cast<char>(0xFF);
  CHECK_THAT(model.Error(), Contains("tensor '" + model.name + "': holds a NaN"));
  model.tensors = good;
  model.tensors.erase(scale);
  CHECK_THAT(model.Error(), Contains("tensor '" + scale + "': is missing"));
  model.tensors = good;
  model.tensors[scale].shape = {2, 4};
  CHECK_THAT(model.Error(), Contains("tensor '" + scale + "': shape must be [4, 2], got [2, 4]"));
  model.tensors = good;
  model.tensors[scale].bytes.replace(4, 4, std::string("\0\0\x80\x7f", 4));
  CHECK_THAT(model.Error(), Contains("tensor '" + scale + "': must hold finite scales"));
  model.tensors = good;
  model.tensors["model.norm.weight_scale_inv"] = good.at(scale);
  CHECK_THAT(model.Error(), Contains("model.norm.weight_scale_inv': is not part of the model"));
}

TEST_CASE("stacked FP8 experts load like separate ones") {
  BadFp8 model;
  const std::string prefix = "model.layers.1.mlp.experts.";
  const auto stack = [&](const std::string& out, const std::vector<const char*>& parts,
                         const std::string& ending, std::vector<int64_t> shape) {
    test::TensorData stacked{ending.empty() ? "F8_E4M3" : "F32", std::move(shape), ""};
    for (int e = 0; e < 4; ++e) {
      for (const char* part : parts) {
        const std::string name = prefix + std::to_string(e) + "." + part + ".weight" + ending;
        stacked.bytes += model.tensors.at(name).bytes;
        model.tensors.erase(name);
      }
    }
    model.tensors[prefix + out + ending] = stacked;
  };
  // One grid covers gate and up of an expert, so their boundary must be one of blocks.
  json config = Glm(2);
  config["moe_intermediate_size"] = 256;
  MakeModel(config, model.dir.path(), {.fp8 = true});
  model.tensors = test::ToMap(CheckpointFolder(model.dir.path()).tensors());
  const ModelWeights want = Load(model.dir.path(), 1, 3);
  stack("gate_up_proj", {"gate_proj", "up_proj"}, "", {4, 512, 160});
  stack("gate_up_proj", {"gate_proj", "up_proj"}, "_scale_inv", {4, 4, 2});
  stack("down_proj", {"down_proj"}, "", {4, 160, 256});
  stack("down_proj", {"down_proj"}, "_scale_inv", {4, 2, 2});
  REQUIRE(model.Error() == "no error");
  const ModelWeights got = Load(model.dir.path(), 1, 3);
  const auto a = MatricesOf(got), b = MatricesOf(want);
  for (size_t i = 0; i < a.size(); ++i) REQUIRE(Unpack(*a[i]) == Unpack(*b[i]));
}

}  // namespace
}  // namespace weft
