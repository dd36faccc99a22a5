// model.safetensors.index.json beside two good shards: either a ModelError, or a folder whose
// tensors are the shards' own.
#include "engine/model/checkpoint.h"
#include "tests/fuzz/tensor_checks.h"
#include "tests/model/safetensors_writer.h"

namespace weft::fuzz {
namespace {

const test::TempDir& Folder() {
  static const test::TempDir dir;
  static const bool written = [] {
    const auto tensor = [](char fill) {
      return test::TensorData{"F32", {2, 2}, std::string(16, fill)};
    };
    test::WriteSafetensors(dir / "model-00001-of-00002.safetensors",
                           {{"model.norm.weight", tensor(1)}, {"lm_head.weight", tensor(2)}});
    test::WriteSafetensors(dir / "model-00002-of-00002.safetensors", {{"c", tensor(3)}});
    return true;
  }();
  Require(written && !dir.path().empty(), "a scratch folder");
  return dir;
}

}  // namespace
}  // namespace weft::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const weft::test::TempDir& dir = weft::fuzz::Folder();
  weft::fuzz::WriteAnew(dir / "model.safetensors.index.json", std::string(data, data + size));
  try {
    const weft::CheckpointFolder folder(dir.path());
    weft::fuzz::Require(folder.tensors().size() <= 3, "no more tensors than the shards hold");
    for (const auto& [name, tensor] : folder.tensors()) {
      weft::fuzz::Require(name == tensor.name && &folder.At(name) == &tensor, "found by its name");
      weft::fuzz::CheckTensor(tensor);
    }
  } catch (const weft::ModelError& error) {
    weft::fuzz::Require(std::string(error.what()).starts_with(dir.path()),
                        "the error names the folder");
  }
  return 0;
}
