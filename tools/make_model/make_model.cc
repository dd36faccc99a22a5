#include "tools/make_model/make_model.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <vector>

#include "engine/model/checkpoint.h"
#include "engine/model/config.h"
#include "engine/model/json_keys.h"
#include "engine/model/pack_plan.h"
#include "kernels/cpu/vec16.h"
#include "tools/make_model/block_fp8.h"
#include "tools/make_model/shard_writer.h"
#include "tools/make_model/tensor_list.h"

namespace weft {
namespace fs = std::filesystem;
using nlohmann::json;

namespace {

// Rows [begin, begin + count) of a matrix as fp32; a vector is a matrix of one row.
using Rows = std::function<void(int64_t begin, int64_t count, float* out)>;

struct Matrix {
  std::string name;
  std::vector<int64_t> shape;
  Rows rows;

  int64_t height() const { return shape.size() == 2 ? shape[0] : 1; }
  int64_t width() const { return shape.back(); }
};

// Calls put(values, rows) for one strip of up to 128 rows after the other.
template <typename Put>
void ForStrips(const Matrix& m, Put put) {
  std::vector<float> strip(static_cast<size_t>(std::min(m.height(), kFp8Block) * m.width()));
  for (int64_t row = 0; row < m.height(); row += kFp8Block) {
    const int64_t count = std::min(kFp8Block, m.height() - row);
    m.rows(row, count, strip.data());
    put(strip.data(), count);
  }
}

template <typename T>
void Write(std::ostream& out, const std::vector<T>& values) {
  out.write(reinterpret_cast<const char*>(values.data()),
            static_cast<std::streamsize>(values.size() * sizeof(T)));
}

TensorToWrite AsFloat(const Matrix& m) {
  return {m.name, "F32", m.shape, 4 * m.height() * m.width(), [m](std::ostream& out) {
            ForStrips(m, [&](const float* x, int64_t rows) {
              Write(out, std::vector<float>(x, x + rows * m.width()));
            });
          }};
}

TensorToWrite AsBf16(const Matrix& m) {
  return {m.name, "BF16", m.shape, 2 * m.height() * m.width(), [m](std::ostream& out) {
            ForStrips(m, [&](const float* x, int64_t rows) {
              std::vector<uint16_t> bits(static_cast<size_t>(rows * m.width()));
              // A lambda, since the function itself has to be inlined.
              std::transform(x, x + bits.size(), bits.begin(),
                             [](float value) { return isa_plain::Bf16Of(value); });
              Write(out, bits);
            });
          }};
}

// The numbers and their scales, each in a pass of its own over the matrix.
void AddAsFp8(const Matrix& m, bool ue8m0, std::vector<TensorToWrite>* tensors) {
  const int64_t blocks = (m.width() + kFp8Block - 1) / kFp8Block;
  const int64_t strips = (m.height() + kFp8Block - 1) / kFp8Block;
  tensors->push_back(
      {m.name, "F8_E4M3", m.shape, m.height() * m.width(), [m, ue8m0](std::ostream& out) {
         ForStrips(m, [&](const float* x, int64_t rows) {
           std::vector<uint8_t> codes(static_cast<size_t>(rows * m.width()));
           QuantizeStrip(x, rows, m.width(), ue8m0, codes.data(), nullptr);
           Write(out, codes);
         });
       }});
  tensors->push_back({m.name + "_scale_inv",
                      "F32",
                      {strips, blocks},
                      4 * strips * blocks,
                      [m, ue8m0, blocks](std::ostream& out) {
                        ForStrips(m, [&](const float* x, int64_t rows) {
                          std::vector<float> scales(static_cast<size_t>(blocks));
                          QuantizeStrip(x, rows, m.width(), ue8m0, nullptr, scales.data());
                          Write(out, scales);
                        });
                      }});
}

uint64_t Mix(uint64_t x) {  // the output function of SplitMix64
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ x >> 27) * 0x94D049BB133111EBull;
  return x ^ x >> 31;
}

// Element i depends on seed, name and i alone: four 16-bit uniforms, summed, are near enough to a
// normal number, and need no libm.
Rows RandomRows(const TensorSpec& spec, uint64_t seed) {
  uint64_t key = Mix(seed + 0x9E3779B97F4A7C15ull);
  for (const char c : spec.name) key = Mix(key ^ static_cast<uint8_t>(c)) + 0x9E3779B97F4A7C15ull;
  const int64_t width = spec.shape.back();
  float mean = 0, spread = 1.2f / std::sqrt(static_cast<float>(width));
  if (spec.name.ends_with("embed_tokens.weight")) spread = 1;
  if (spec.role == TensorRole::kNormWeight) mean = 1, spread = 0.25f;
  if (spec.role == TensorRole::kNormBias) spread = 0.2f;
  if (spec.role == TensorRole::kRouterBias) spread = 0.1f;
  return [=](int64_t begin, int64_t count, float* out) {
    for (int64_t i = begin * width; i < (begin + count) * width; ++i) {
      const uint64_t bits = Mix(key + static_cast<uint64_t>(i) * 0x9E3779B97F4A7C15ull);
      const auto sum = static_cast<int32_t>((bits & 0xFFFF) + (bits >> 16 & 0xFFFF) +
                                            (bits >> 32 & 0xFFFF) + (bits >> 48));
      // Four uniforms of width 65536 have standard deviation 65536 / sqrt(3).
      *out++ = mean + spread * (static_cast<float>(sum - 131070) * (1.7320508f / 65536));
    }
  };
}

void WriteConfig(const std::string& dir, const json& config) {
  std::ofstream out(dir + "/config.json");
  out << config.dump(2) << "\n";
  out.close();
  if (!out) throw std::runtime_error(dir + "/config.json: cannot be written");
}

json Quantization(bool ue8m0) {
  json quantization = {{"quant_method", "fp8"},
                       {"fmt", "e4m3"},
                       {"activation_scheme", "dynamic"},
                       {"weight_block_size", {kFp8Block, kFp8Block}}};
  if (ue8m0) quantization["scale_fmt"] = "ue8m0";
  return quantization;
}

// Everything but weights, their index and the config.
void CopyOtherFiles(const std::string& from, const std::string& dir) {
  for (const auto& entry : fs::directory_iterator(from)) {
    const std::string name = entry.path().filename().string();
    if (!entry.is_regular_file() || name == "config.json" || name.ends_with(".safetensors") ||
        name == "model.safetensors.index.json") {
      continue;
    }
    fs::copy_file(entry.path(), dir + "/" + name, fs::copy_options::overwrite_existing);
  }
}

void RefuseSameFolder(const std::string& from, const std::string& dir) {
  fs::create_directories(dir);
  if (fs::equivalent(from, dir))
    throw std::runtime_error(dir + ": must not be the folder it reads");
}

Matrix View(const Tensor& tensor) {
  const int64_t width = tensor.shape.back();
  return {tensor.name, tensor.shape, [&tensor, width](int64_t begin, int64_t count, float* out) {
            const auto* data = static_cast<const char*>(tensor.data);
            const auto element = static_cast<int64_t>(SizeOf(tensor.dtype()));
            WidenToFloat(data + begin * width * element, tensor.dtype(), count * width, out);
          }};
}

Matrix Dequantized(const Tensor& tensor, const Tensor& scale) {
  const int64_t width = tensor.shape.back(), blocks = scale.shape.back();
  return {tensor.name, tensor.shape,
          [&tensor, &scale, width, blocks](int64_t begin, int64_t count, float* out) {
            DequantizeStrip(static_cast<const uint8_t*>(tensor.data) + begin * width,
                            static_cast<const float*>(scale.data) + begin / kFp8Block * blocks,
                            count, width, out);
          }};
}

TensorToWrite Unchanged(const Tensor& tensor) {
  return {tensor.name, tensor.dtype_name, tensor.shape, static_cast<int64_t>(tensor.bytes),
          [&tensor](std::ostream& out) {
            out.write(static_cast<const char*>(tensor.data),
                      static_cast<std::streamsize>(tensor.bytes));
          }};
}

}  // namespace

void MakeModel(const json& config, const std::string& dir, const MakeOptions& options) {
  const std::string where = dir + "/config.json";
  json written = config;
  written.erase("quantization_config");
  if (options.fp8) written["quantization_config"] = Quantization(options.ue8m0);
  const ModelConfig parsed = ParseConfig(written, where);
  const int32_t mtp = JsonKeys(config, where).Int("num_nextn_predict_layers", 0, 16, 0);
  std::vector<TensorToWrite> tensors;
  for (const TensorSpec& spec : TensorsOf(parsed, mtp)) {
    const Matrix matrix{spec.name, spec.shape, RandomRows(spec, options.seed)};
    if (options.fp8 && spec.role == TensorRole::kProjection) {
      AddAsFp8(matrix, options.ue8m0, &tensors);
    } else {
      tensors.push_back(spec.role == TensorRole::kRouterBias ? AsFloat(matrix) : AsBf16(matrix));
    }
  }
  fs::create_directories(dir);
  WriteConfig(dir, written);
  WriteShards(dir, std::move(tensors), options.shard_bytes);
}

void ConvertToFp8(const std::string& from, const std::string& dir, const MakeOptions& options) {
  const CheckpointFolder folder(from);
  json config = ReadJson(from + "/config.json");
  RefuseSameFolder(from, dir);
  std::vector<TensorToWrite> tensors;
  for (const auto& [name, tensor] : folder.tensors()) {
    const bool matrix = IsProjection(name) && tensor.shape.size() == 2;
    if (matrix && tensor.dtype() != DType::kF8E4M3) {
      AddAsFp8(View(tensor), options.ue8m0, &tensors);
    } else {
      tensors.push_back(Unchanged(tensor));
    }
  }
  config["quantization_config"] = Quantization(options.ue8m0);
  WriteConfig(dir, config);
  CopyOtherFiles(from, dir);
  WriteShards(dir, std::move(tensors), options.shard_bytes);
}

void ConvertToFp32(const std::string& from, const std::string& dir, const MakeOptions& options) {
  const CheckpointFolder folder(from);
  json config = ReadJson(from + "/config.json");
  RefuseSameFolder(from, dir);
  std::vector<TensorToWrite> tensors;
  for (const auto& [name, tensor] : folder.tensors()) {
    if (name.ends_with("_scale_inv")) continue;
    if (tensor.dtype_name != "F8_E4M3") {
      tensors.push_back(Unchanged(tensor));
      continue;
    }
    const Tensor& scale = folder.At(name + "_scale_inv");
    if (tensor.shape.size() != 2) tensor.Fail("must have two dimensions");
    const std::vector<int64_t> grid = {(tensor.shape[0] + kFp8Block - 1) / kFp8Block,
                                       (tensor.shape[1] + kFp8Block - 1) / kFp8Block};
    if (scale.dtype() != DType::kF32 || scale.shape != grid) {
      scale.Fail("must be F32 of shape " + ShapeText(grid));
    }
    tensors.push_back(AsFloat(Dequantized(tensor, scale)));
  }
  config.erase("quantization_config");
  WriteConfig(dir, config);
  CopyOtherFiles(from, dir);
  WriteShards(dir, std::move(tensors), options.shard_bytes);
}

}  // namespace weft
