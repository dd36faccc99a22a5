// Every slice of every matrix, put together again over all ranks, is the checkpoint's tensor.
#include "engine/model/weights.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <cmath>
#include <map>
#include <set>

#include "tests/model/tiny_model.h"
#include "tests/model/unpack.h"

namespace weft {
namespace {

using test::Unpack;
using test::Values;

const std::string kDemo = std::string(WEFT_SOURCE_DIR) + "/deploy/models/demo";

// What all ranks together hold, by tensor name.
class Assembly {
 public:
  Assembly(const ModelConfig& config, const CheckpointFolder& folder)
      : c_(config), folder_(folder) {}

  void AddRank(const ModelWeights& w) {
    for (int32_t i = 0; i < c_.layers; ++i) {
      AddLayer("model.layers." + std::to_string(i) + ".", w, w.layers[i]);
    }
    CheckVector("model.norm.weight", w.final_norm);
    Add(c_.tie_word_embeddings ? "model.embed_tokens.weight" : "lm_head.weight", w.lm_head);
  }

  void CheckAll() const {
    for (const auto& [name, rows] : rows_) {
      CAPTURE(name);
      REQUIRE((rows == Values(folder_.At(name))));
    }
  }

  size_t tensors() const { return rows_.size() + whole_.size(); }

 private:
  void AddLayer(const std::string& layer, const ModelWeights& all, const LayerWeights& w) {
    const std::string attn = layer + "self_attn.";
    const RankSlices& slices = all.slices;
    CheckVector(layer + "input_layernorm.weight", w.input_norm);
    CheckVector(layer + "post_attention_layernorm.weight", w.post_norm);
    CheckVector(attn + "q_a_layernorm.weight", w.q_a_norm);
    CheckVector(attn + "kv_a_layernorm.weight", w.kv_a_norm);
    if (all.partition == Partition::kGather) {
      Add(attn + "q_a_proj.weight", w.q_a);
    } else {
      CheckWhole(attn + "q_a_proj.weight", w.q_a);
    }
    Add(attn + "q_b_proj.weight", w.q_b);
    CheckWhole(attn + "kv_a_proj_with_mqa.weight", w.kv_a);
    AddAbsorbed(attn + "kv_b_proj.weight", w);
    AddInputs(attn + "o_proj.weight", w.o, slices.o_inputs);
    REQUIRE(w.indexer);
    CheckWhole(attn + "indexer.wq_b.weight", w.indexer->wq_b);
    CheckWhole(attn + "indexer.wk.weight", w.indexer->wk);
    CheckWhole(attn + "indexer.weights_proj.weight", w.indexer->weights_proj);
    CheckVector(attn + "indexer.k_norm.weight", w.indexer->k_norm);
    CheckVector(attn + "indexer.k_norm.bias", w.indexer->k_norm_bias);
    if (!w.is_moe) return AddMlp(layer + "mlp.", w.mlp, slices.intermediate_inputs);
    CheckWhole(layer + "mlp.gate.weight", w.router);
    CheckVector(layer + "mlp.gate.e_score_correction_bias", w.router_bias);
    REQUIRE(static_cast<int32_t>(w.experts.size()) == c_.n_routed_experts);
    for (size_t e = 0; e < w.experts.size(); ++e) {
      const MlpWeights& expert = w.experts[e];
      if (slices.Holds(static_cast<int32_t>(e))) {
        AddMlp(layer + "mlp.experts." + std::to_string(e) + ".", expert, slices.moe_inputs);
      } else {
        REQUIRE(expert.gate.n + expert.up.n + expert.down.n == 0);
      }
    }
    AddMlp(layer + "mlp.shared_experts.", w.shared, slices.shared_inputs);
  }

  void AddMlp(const std::string& mlp, const MlpWeights& w, Slice inputs) {
    Add(mlp + "gate_proj.weight", w.gate);
    Add(mlp + "up_proj.weight", w.up);
    AddInputs(mlp + "down_proj.weight", w.down, inputs);
  }

  // Columns `inputs` of some rows.
  void AddInputs(const std::string& name, const PackedMatrix& m, Slice inputs) {
    const Tensor& tensor = folder_.At(name);
    const int64_t columns = tensor.shape[1];
    REQUIRE(m.k == inputs.count);
    if (inputs.count == columns) return Append(m, &rows_[name]);
    REQUIRE(m.n == tensor.shape[0]);
    const auto part = Unpack(m);
    auto& all = rows_[name];
    all.resize(static_cast<size_t>(m.n * columns), NAN);
    for (int64_t n = 0; n < m.n; ++n) {
      for (int64_t k = 0; k < m.k; ++k) {
        float& at = all[static_cast<size_t>(n * columns + inputs.begin + k)];
        REQUIRE(std::isnan(at));  // no other rank has it
        at = part[static_cast<size_t>(n * m.k + k)];
      }
    }
  }

  // W_K comes back from its transpose.
  void AddAbsorbed(const std::string& name, const LayerWeights& w) {
    REQUIRE(w.w_k.size() == w.w_v.size());
    auto& rows = rows_[name];
    for (size_t h = 0; h < w.w_k.size(); ++h) {
      REQUIRE(w.w_k[h].n == c_.kv_lora);
      REQUIRE(w.w_k[h].k == c_.qk_nope);
      const auto transposed = Unpack(w.w_k[h]);
      for (int32_t d = 0; d < c_.qk_nope; ++d) {
        for (int32_t j = 0; j < c_.kv_lora; ++j) {
          rows.push_back(transposed[static_cast<size_t>(j) * c_.qk_nope + d]);
        }
      }
      REQUIRE(w.w_v[h].n == c_.v_head);
      Append(w.w_v[h], &rows);
    }
  }

  static void Append(const PackedMatrix& m, std::vector<float>* rows) {
    const auto more = Unpack(m);
    rows->insert(rows->end(), more.begin(), more.end());
  }

  void Add(const std::string& name, const PackedMatrix& m) { Append(m, &rows_[name]); }

  void CheckWhole(const std::string& name, const PackedMatrix& m) {
    CAPTURE(name);
    REQUIRE((Unpack(m) == Values(folder_.At(name))));
    whole_.insert(name);
  }

  void CheckVector(const std::string& name, const std::vector<float>& v) {
    CAPTURE(name);
    REQUIRE((v == Values(folder_.At(name))));
    whole_.insert(name);
  }

  const ModelConfig& c_;
  const CheckpointFolder& folder_;
  std::map<std::string, std::vector<float>> rows_;
  std::set<std::string> whole_;
};

void CheckReassembly(const std::string& dir, int ranks, Partition partition = Partition::kGather) {
  const ModelConfig config = LoadConfig(dir);
  const CheckpointFolder folder(dir);
  Assembly all(config, folder);
  for (int rank = 0; rank < ranks; ++rank) {
    const ModelWeights w = LoadWeights(config, folder, rank, ranks, partition);
    all.AddRank(w);
  }
  all.CheckAll();
  // All but the embedding table, which is not packed (and is the head when they are tied).
  REQUIRE(all.tensors() == folder.tensors().size() - (config.tie_word_embeddings ? 0 : 1));
}

TEST_CASE("the demo model's slices add up to the checkpoint for any number of ranks") {
  for (const int ranks : {1, 2, 3, 4, 7, 16}) {
    CAPTURE(ranks);
    CheckReassembly(kDemo, ranks);
  }
}

TEST_CASE("pairs of matrices that are summed over the ranks add up to the checkpoint too") {
  const Partition partition = GENERATE(Partition::kReduceSplit, Partition::kReduceWhole);
  const ModelConfig config = ParseConfig(test::TinyConfig(), "config.json");
  const test::TempDir odd;
  test::WriteModel(odd, test::TinyConfig(), test::TinyTensors(config, "F16"));
  for (const int ranks : {1, 2, 3, 7, 16}) {
    CAPTURE(Name(partition), ranks);
    CheckReassembly(odd.path(), ranks, partition);
    CheckReassembly(kDemo, ranks, partition);
  }
}

TEST_CASE("odd widths, in fp32, bf16 and fp16") {
  const ModelConfig config = ParseConfig(test::TinyConfig(), "config.json");
  for (const char* dtype : {"F32", "BF16", "F16"}) {
    const test::TempDir dir;
    test::WriteModel(dir, test::TinyConfig(), test::TinyTensors(config, dtype));
    for (const int ranks : {1, 2, 3, 4, 7, 16}) {
      CAPTURE(dtype, ranks);
      CheckReassembly(dir.path(), ranks);
    }
    const ModelWeights w = LoadWeights(config, CheckpointFolder(dir.path()), 0, 1);
    const DType expected = std::string(dtype) == "BF16" ? DType::kBF16 : DType::kF32;
    CHECK(w.layers[0].q_a.dtype == expected);
    CHECK(w.embed_dtype == expected);
  }
}

TEST_CASE("the absorbed packs compute what the two halves of kv_b compute") {
  const ModelConfig c = LoadConfig(kDemo);
  const CheckpointFolder folder(kDemo);
  const ModelWeights w = LoadWeights(c, folder, 1, 3);  // heads 3, 4, 5
  const auto kv_b = Values(folder.At("model.layers.2.self_attn.kv_b_proj.weight"));
  REQUIRE(w.slices.heads == Slice{3, 3});
  const auto kv_b_at = [&](int head, int row, int col) {
    return kv_b[static_cast<size_t>(head * 128 + row) * 512 + col];
  };
  for (int own = 0; own < 3; ++own) {
    const auto w_k = Unpack(w.layers[2].w_k[own]);
    const auto w_v = Unpack(w.layers[2].w_v[own]);
    std::vector<double> q(64), latent(512);
    for (int i = 0; i < 64; ++i) q[i] = std::sin(i + own);
    for (int i = 0; i < 512; ++i) latent[i] = std::cos(3 * i);
    double absorbed = 0, naive = 0;  // q . (W_K latent) both ways
    for (int j = 0; j < 512; ++j) {
      for (int d = 0; d < 64; ++d) {
        absorbed += w_k[j * 64 + d] * q[d] * latent[j];
        naive += kv_b_at(3 + own, d, j) * q[d] * latent[j];
      }
    }
    CHECK(absorbed == Approx(naive).epsilon(1e-12));
    for (int d = 0; d < 64; ++d) {
      double out = 0, expected = 0;
      for (int j = 0; j < 512; ++j) {
        out += w_v[d * 512 + j] * latent[j];
        expected += kv_b_at(3 + own, 64 + d, j) * latent[j];
      }
      CHECK(out == expected);
    }
  }
}

TEST_CASE("the embedding stays in the file, and outlives the folder") {
  const ModelConfig config = LoadConfig(kDemo);
  std::vector<float> expected;
  const auto load = [&] {
    const CheckpointFolder folder(kDemo);
    expected = Values(folder.At("model.embed_tokens.weight"));
    return LoadWeights(config, folder, 0, 2);
  };
  const ModelWeights w = load();
  REQUIRE(w.embed_dtype == DType::kBF16);
  std::vector<float> table(expected.size());
  WidenToFloat(w.embed, w.embed_dtype, static_cast<int64_t>(table.size()), table.data());
  CHECK((table == expected));
}

TEST_CASE("stacked experts load like separate ones") {
  const ModelConfig config = ParseConfig(test::TinyConfig(), "config.json");
  const test::TensorMap separate = test::TinyTensors(config, "BF16");
  test::TensorMap stacked;
  std::string gate_up, down;
  const std::string prefix = "model.layers.1.mlp.experts.";
  for (int e = 0; e < 4; ++e) {
    const std::string expert = prefix + std::to_string(e) + ".";
    gate_up += separate.at(expert + "gate_proj.weight").bytes;
    gate_up += separate.at(expert + "up_proj.weight").bytes;
    down += separate.at(expert + "down_proj.weight").bytes;
  }
  for (const auto& [name, tensor] : separate) {
    if (!name.starts_with(prefix)) stacked[name] = tensor;
  }
  stacked[prefix + "gate_up_proj"] = {"BF16", {4, 40, 40}, gate_up};
  stacked[prefix + "down_proj"] = {"BF16", {4, 40, 20}, down};
  const test::TempDir a, b;
  test::WriteModel(a, test::TinyConfig(), separate);
  test::WriteModel(b, test::TinyConfig(), stacked);
  for (int rank = 0; rank < 2; ++rank) {
    const ModelWeights one = LoadWeights(config, CheckpointFolder(a.path()), rank, 2);
    const ModelWeights two = LoadWeights(config, CheckpointFolder(b.path()), rank, 2);
    for (int e = 0; e < 4; ++e) {
      CHECK((Unpack(one.layers[1].experts[e].gate) == Unpack(two.layers[1].experts[e].gate)));
      CHECK((Unpack(one.layers[1].experts[e].up) == Unpack(two.layers[1].experts[e].up)));
      CHECK((Unpack(one.layers[1].experts[e].down) == Unpack(two.layers[1].experts[e].down)));
    }
  }
}

TEST_CASE("tied embeddings serve as the head") {
  nlohmann::json json = test::TinyConfig();
  json["tie_word_embeddings"] = true;
  const ModelConfig config = ParseConfig(json, "config.json");
  test::TensorMap tensors = test::TinyTensors(config, "F32");
  const test::TempDir dir;
  test::WriteModel(dir, json, tensors);  // a head in the file is ignored without a word
  CHECK_NOTHROW(LoadWeights(config, CheckpointFolder(dir.path()), 0, 1));
  tensors.erase("lm_head.weight");
  test::WriteModel(dir, json, tensors);
  CheckReassembly(dir.path(), 3);
}

TEST_CASE("progress ends at the total, and ranks share the bytes") {
  const ModelConfig config = LoadConfig(kDemo);
  const CheckpointFolder folder(kDemo);
  int64_t last = 0, all = 0;
  const auto start = std::chrono::steady_clock::now();
  const ModelWeights w =
      LoadWeights(config, folder, 0, 1, Partition::kGather, [&](int64_t done, int64_t total) {
        REQUIRE(done > last);
        last = done, all = total;
      });
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  WARN("demo model packed in " << seconds.count() * 1e3 << " ms, " << w.packed_bytes << " bytes");
  CHECK(last == all);
  CHECK(w.packed_bytes == all);
  CHECK(LoadWeights(config, folder, 1, 2).packed_bytes < all * 6 / 10);
}

}  // namespace
}  // namespace weft
