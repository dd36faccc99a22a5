// config.json: whatever it holds, either a ModelError that names the file, or a model whose sizes
// and constants can be computed with.
#include <cmath>

#include "engine/model/config.h"
#include "engine/model/model_error.h"
#include "engine/model/rope.h"
#include "tests/fuzz/fuzz.h"
#include "tests/model/safetensors_writer.h"

namespace weft::fuzz {
namespace {

void CheckSizes(const ModelConfig& c) {
  for (int32_t size :
       {c.vocab, c.hidden, c.layers, c.heads, c.q_lora, c.kv_lora, c.qk_nope, c.qk_rope, c.v_head,
        c.intermediate, c.moe_intermediate, c.n_routed_experts, c.experts_per_tok, c.index_heads,
        c.index_dim, c.index_topk, c.max_positions, c.n_group, c.topk_group}) {
    Require(size > 0, "every size is positive");
  }
  for (int64_t product :
       {int64_t{c.heads} * (int64_t{c.qk_nope} + c.qk_rope), int64_t{c.heads} * c.v_head,
        int64_t{c.kv_lora} + c.qk_rope, int64_t{c.n_shared_experts} * c.moe_intermediate,
        int64_t{c.index_heads} * c.index_dim}) {
    Require(product >= 0 && product <= INT32_MAX, "every width fits an int32");
  }
  Require(c.indexer_types.size() == static_cast<size_t>(c.layers), "a type for every layer");
  Require(c.is_moe.size() == static_cast<size_t>(c.layers), "a kind of MLP for every layer");
  Require(c.indexer_types[0] == IndexerType::kFull, "layer 0 selects");
  Require(c.index_dim >= c.qk_rope, "the rope part fits the index key");
  Require(c.n_routed_experts % c.n_group == 0 && c.topk_group <= c.n_group, "groups are whole");
  Require(c.experts_per_tok <= c.n_routed_experts / c.n_group * c.topk_group, "enough experts");
}

bool Usable(double value) {
  return std::isfinite(static_cast<float>(value)) && static_cast<float>(value) > 0;
}

void CheckConstants(const ModelConfig& c) {
  Require(Usable(c.SoftmaxScale()), "a finite softmax scale");
  Require(Usable(c.routed_scaling_factor), "a finite expert scale");
  Require(Usable(c.rms_norm_eps), "a finite eps");
  const int32_t positions[] = {0, 1, c.max_positions - 1};
  const auto half = static_cast<size_t>(c.qk_rope / 2);
  std::vector<float> cos(3 * half), sin(3 * half);
  RopeTable(c, positions, 3, cos.data(), sin.data());
  for (size_t i = 0; i < cos.size(); ++i) {
    Require(std::isfinite(cos[i]) && std::isfinite(sin[i]), "finite rope tables");
  }
}

}  // namespace
}  // namespace weft::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const weft::test::TempDir dir;
  weft::fuzz::WriteAnew(dir / "config.json", std::string(data, data + size));
  try {
    const weft::ModelConfig config = weft::LoadConfig(dir.path());
    weft::fuzz::CheckSizes(config);
    weft::fuzz::CheckConstants(config);
  } catch (const weft::ModelError& error) {
    weft::fuzz::Require(std::string(error.what()).starts_with(dir / "config.json"),
                        "the error names the file");
  }
  return 0;
}
