// A safetensors file. First byte of the input even: the rest is the file; odd: the rest is the
// header's JSON, and length and 64 bytes of data are right, so that mutations get past them.
#include <algorithm>

#include "tests/fuzz/tensor_checks.h"
#include "tests/model/safetensors_writer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const weft::test::TempDir dir;
  if (size == 0) return 0;
  std::string bytes(data + 1, data + size);
  if (data[0] % 2) bytes = weft::test::SafetensorsBytes(bytes, std::string(64, '\7'));
  const std::string path = dir / "model.safetensors";
  weft::fuzz::WriteAnew(path, bytes);
  try {
    const std::vector<weft::Tensor> tensors = weft::ReadSafetensors(path);
    for (size_t i = 0; i < tensors.size(); ++i) {
      weft::fuzz::CheckTensor(tensors[i]);
      const auto* begin = static_cast<const std::byte*>(tensors[i].data);
      for (size_t j = 0; j < std::min<size_t>(i, 50); ++j) {
        const auto* other = static_cast<const std::byte*>(tensors[j].data);
        const bool apart = other + tensors[j].bytes <= begin || begin + tensors[i].bytes <= other;
        weft::fuzz::Require(apart || tensors[i].bytes * tensors[j].bytes == 0,
                            "no two tensors share a byte");
        weft::fuzz::Require(tensors[i].name != tensors[j].name, "no name occurs twice");
      }
    }
  } catch (const weft::ModelError& error) {
    weft::fuzz::Require(std::string(error.what()).starts_with(path), "the error names the file");
  }
  return 0;
}
