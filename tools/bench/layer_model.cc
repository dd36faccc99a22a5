#include "tools/bench/layer_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <stdexcept>

#include "engine/model/config.h"
#include "tools/make_model/shard_writer.h"
#include "tools/make_model/tensor_list.h"

namespace weft::bench {
namespace {

using nlohmann::json;

// Elements of a block that is repeated: prime, so that rows of a matrix do not line up.
constexpr int64_t kBlock = 4000037;
constexpr double kCodeDeviation = 1.3;  // of the e4m3 numbers below

json ConfigOf(const std::string& name) {
  json config = {
      {"num_hidden_layers", 1},        {"first_k_dense_replace", 0}, {"vocab_size", 1024},
      {"moe_intermediate_size", 2048}, {"n_routed_experts", 256},    {"n_shared_experts", 1},
      {"num_experts_per_tok", 8},      {"kv_lora_rank", 512},        {"qk_rope_head_dim", 64},
      {"index_head_dim", 128},         {"index_topk", 2048},         {"rope_theta", 10000},
      {"routed_scaling_factor", 2.5}};
  if (name == "v32") {
    config.update({{"model_type", "deepseek_v32"},
                   {"hidden_size", 7168},
                   {"num_attention_heads", 128},
                   {"q_lora_rank", 1536},
                   {"qk_nope_head_dim", 128},
                   {"v_head_dim", 128},
                   {"index_n_heads", 64},
                   {"intermediate_size", 18432},
                   {"n_group", 8},
                   {"topk_group", 4},
                   {"rms_norm_eps", 1e-6}});
    return config;
  }
  if (name == "glm52") {
    config.update({{"model_type", "glm_moe_dsa"},
                   {"hidden_size", 6144},
                   {"num_attention_heads", 64},
                   {"q_lora_rank", 2048},
                   {"qk_nope_head_dim", 192},
                   {"v_head_dim", 256},
                   {"index_n_heads", 32},
                   {"intermediate_size", 12288},
                   {"rms_norm_eps", 1e-5}});
    return config;
  }
  throw std::runtime_error("no layer of this name: " + name);
}

template <typename T>
void WriteRepeated(std::ostream& out, const std::vector<T>& block, int64_t count) {
  for (int64_t done = 0; done < count; done += kBlock) {
    const int64_t n = std::min(kBlock, count - done);
    out.write(reinterpret_cast<const char*>(block.data()),
              static_cast<std::streamsize>(n * static_cast<int64_t>(sizeof(T))));
  }
}

uint16_t ToBf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return static_cast<uint16_t>((bits + 0x8000u) >> 16);
}

struct Blocks {
  std::vector<uint8_t> codes;  // e4m3 of magnitude 1/4 to 3.75
  std::vector<float> normal;   // deviation 1
};

Blocks MakeBlocks() {
  Blocks blocks;
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (int64_t i = 0; i < kBlock; ++i) {
    const auto bits = static_cast<uint32_t>(random());
    const uint32_t exponent = 5 + (bits >> 8 & 3);
    blocks.codes.push_back(static_cast<uint8_t>((bits & 0x80) | exponent << 3 | (bits & 7)));
    blocks.normal.push_back(normal(random));
  }
  return blocks;
}

std::vector<TensorToWrite> Tensors(const ModelConfig& config, const Blocks& blocks) {
  std::vector<TensorToWrite> tensors;
  for (const TensorSpec& spec : TensorsOf(config, 0)) {
    int64_t count = 1;
    for (const int64_t size : spec.shape) count *= size;
    const bool embed = spec.name.ends_with("embed_tokens.weight");
    const auto spread =
        static_cast<float>(embed ? 1 : 1.2 / std::sqrt(static_cast<double>(spec.shape.back())));
    if (spec.role == TensorRole::kProjection) {
      const int64_t scales = (spec.shape[0] + 127) / 128 * ((spec.shape[1] + 127) / 128);
      tensors.push_back({spec.name, "F8_E4M3", spec.shape, count,
                         [&blocks, count](auto& out) { WriteRepeated(out, blocks.codes, count); }});
      const float scale = spread / static_cast<float>(kCodeDeviation);
      tensors.push_back({spec.name + "_scale_inv",
                         "F32",
                         {(spec.shape[0] + 127) / 128, (spec.shape[1] + 127) / 128},
                         4 * scales,
                         [scales, scale](auto& out) {
                           const std::vector<float> all(static_cast<size_t>(scales), scale);
                           out.write(reinterpret_cast<const char*>(all.data()), 4 * scales);
                         }});
    } else if (spec.role == TensorRole::kMatrix) {
      tensors.push_back(
          {spec.name, "BF16", spec.shape, 2 * count, [&blocks, count, spread](auto& out) {
             std::vector<uint16_t> bits(blocks.normal.size());
             for (size_t i = 0; i < bits.size(); ++i) {
               bits[i] = ToBf16(blocks.normal[i] * spread);
             }
             WriteRepeated(out, bits, count);
           }});
    } else {
      const float value = spec.role == TensorRole::kNormWeight ? 1.0f : 0.0f;
      tensors.push_back({spec.name, "F32", spec.shape, 4 * count, [count, value](auto& out) {
                           const std::vector<float> all(static_cast<size_t>(count), value);
                           out.write(reinterpret_cast<const char*>(all.data()), 4 * count);
                         }});
    }
  }
  return tensors;
}

}  // namespace

std::vector<std::string> LayerModelNames() { return {"v32", "glm52"}; }

void WriteLayerModel(const std::string& name, int64_t positions, int32_t experts,
                     const std::string& dir) {
  json config = ConfigOf(name);
  config["max_position_embeddings"] = positions;
  if (experts > 0) config["n_routed_experts"] = experts;
  config["quantization_config"] = {
      {"quant_method", "fp8"}, {"fmt", "e4m3"}, {"weight_block_size", {128, 128}}};
  std::filesystem::create_directories(dir);
  std::ofstream(dir + "/config.json") << config.dump(1) << "\n";
  const Blocks blocks = MakeBlocks();
  WriteShards(dir, Tensors(ParseConfig(config, name), blocks), int64_t{1} << 50);
}

}  // namespace weft::bench
