// One safetensors file, memory-mapped: u64 header length, JSON header, data. Nothing in the header
// is trusted: lengths, offsets, shapes and names are checked before a tensor is handed out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/model/mapped_file.h"
#include "kernels/dtype.h"

namespace weft {

struct Tensor {
  std::string name;
  std::string dtype_name;  // as in the file: "BF16"
  std::vector<int64_t> shape;
  const void* data = nullptr;  // lives as long as file
  size_t bytes = 0;
  std::shared_ptr<const MappedFile> file;

  // Throws ModelError "FILE: tensor 'NAME': rule".
  [[noreturn]] void Fail(const std::string& rule) const;

  // Element type; an error that names the tensor when Weft has no such type or the data is not
  // aligned for it. Tensors that are never used may have any type.
  DType dtype() const;
};

// "[576, 256]"
std::string ShapeText(const std::vector<int64_t>& shape);

// All tensors of a file, in the order of their data.
std::vector<Tensor> ReadSafetensors(const std::string& path);

}  // namespace weft
