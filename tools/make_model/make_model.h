// Checkpoints for tests and trials: random models of any configuration, and conversions between
// bf16, block-FP8 and fp32. Everything is in the exact layout of Hugging Face, and the same bytes
// for the same input and seed.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace weft {

struct MakeOptions {
  uint64_t seed = 1;
  bool fp8 = false;    // projections as e4m3 with block scales; else all bf16
  bool ue8m0 = false;  // scales rounded up to powers of two
  int64_t shard_bytes = int64_t{5} << 30;
};

// A random model whose layers all matter: gain about 1, uneven norms. `config` is that of
// config.json, and is written beside the shards; num_nextn_predict_layers says how many MTP layers
// follow. Throws ModelError for a config that Weft cannot run. DIR is made where it is missing.
void MakeModel(const nlohmann::json& config, const std::string& dir, const MakeOptions& options);

// Copies a folder with its projections quantised (`seed` and `fp8` are not used); other tensors and
// files stay as they are, and config.json gets its quantization_config.
void ConvertToFp8(const std::string& from, const std::string& dir, const MakeOptions& options);

// The inverse: every FP8 tensor becomes fp32, e4m3 * scale, and quantization_config goes.
void ConvertToFp32(const std::string& from, const std::string& dir, const MakeOptions& options);

}  // namespace weft
