#include <cstring>
#include <filesystem>
#include <functional>
#include <stdexcept>

#include "engine/model/checkpoint.h"
#include "tests/engine/harness.h"
#include "tests/model/safetensors_writer.h"

namespace weft::test {
namespace {

const std::string kFixtures = std::string(WEFT_SOURCE_DIR) + "/tests/fixtures/data";

template <typename T>
std::vector<T> Read(const Tensor& tensor, const std::string& dtype) {
  if (tensor.dtype_name != dtype) tensor.Fail("expected " + dtype);
  std::vector<T> values(tensor.bytes / sizeof(T));
  std::memcpy(values.data(), tensor.data, tensor.bytes);
  return values;
}

}  // namespace

std::string DemoModel() { return std::string(WEFT_SOURCE_DIR) + "/deploy/models/demo"; }

std::string TinyModel(const std::string& variant) {
  const std::string weights = kFixtures + "/layers/plain";
  if (variant == "plain") return weights;
  // The other variants are a config over the same weights.
  static const TempDir dir;
  const std::filesystem::path folder = dir / variant;
  if (std::filesystem::create_directory(folder)) {
    std::filesystem::create_symlink(kFixtures + "/layers/" + variant + "/config.json",
                                    folder / "config.json");
    std::filesystem::create_symlink(weights + "/model.safetensors", folder / "model.safetensors");
  }
  return folder;
}

namespace {

// The plain tiny model, `change` made to every tensor whose name ends in `ending`.
std::string ChangedTinyModel(const std::string& name, const std::string& ending,
                             const std::function<void(TensorMap::mapped_type*)>& change) {
  static const TempDir dir;
  const std::filesystem::path folder = dir / name;
  if (!std::filesystem::create_directory(folder)) return folder;
  std::filesystem::create_symlink(TinyModel() + "/config.json", folder / "config.json");
  TensorMap tensors = ToMap(CheckpointFolder(TinyModel()).tensors());
  size_t changed = 0;
  for (auto& [tensor_name, tensor] : tensors) {
    if (!tensor_name.ends_with(ending)) continue;
    change(&tensor);
    ++changed;
  }
  if (changed == 0) throw std::runtime_error("no tensor ends in " + ending);
  WriteSafetensors(folder / "model.safetensors", tensors);
  return folder;
}

}  // namespace

std::string TinyModelWithZeros(const std::string& ending) {
  return ChangedTinyModel(ending, ending,
                          [](auto* tensor) { tensor->bytes.assign(tensor->bytes.size(), '\0'); });
}

std::string TinyModelWithNans(const std::string& ending, size_t row) {
  return ChangedTinyModel("nan-" + ending, ending, [row](auto* tensor) {
    const size_t width = tensor->bytes.size() / static_cast<size_t>(tensor->shape[0]);
    // All bits set are a NaN in fp32 and in bf16.
    std::fill_n(tensor->bytes.begin() + static_cast<int64_t>(row * width), width, '\xFF');
  });
}

std::string TinyExpected(const std::string& variant) {
  return kFixtures + "/layers/" + variant + "/expected.safetensors";
}

Fixture::Fixture(const std::string& path) : tensors_(ReadSafetensors(path)) {}

const Tensor& Fixture::At(const std::string& name) const {
  for (const Tensor& tensor : tensors_) {
    if (tensor.name == name) return tensor;
  }
  throw std::runtime_error("the fixture has no tensor " + name);
}

std::vector<int32_t> Fixture::Ints(const std::string& name) const {
  return Read<int32_t>(At(name), "I32");
}

std::vector<float> Fixture::Floats(const std::string& name) const {
  return Read<float>(At(name), "F32");
}

std::vector<int64_t> Fixture::Shape(const std::string& name) const { return At(name).shape; }

Fixture ExampleLogprobs(const std::string& number) {
  return Fixture(kFixtures + "/logprobs/example-" + number + ".safetensors");
}

std::vector<int32_t> Document(int32_t count) {
  std::vector<int32_t> ids = ExampleLogprobs("09").Ints("token_ids");
  ids.resize(static_cast<size_t>(count));
  return ids;
}

}  // namespace weft::test
