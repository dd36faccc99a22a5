// What holds for every tensor that the reader hands out.
#pragma once

#include "engine/model/model_error.h"
#include "engine/model/safetensors.h"
#include "tests/fuzz/fuzz.h"

namespace weft::fuzz {

inline void CheckTensor(const Tensor& tensor) {
  const auto* begin = static_cast<const std::byte*>(tensor.data);
  const std::byte* file = tensor.file->data();
  Require(begin >= file && begin <= file + tensor.file->size(), "its data begins in the file");
  Require(tensor.bytes <= static_cast<size_t>(file + tensor.file->size() - begin),
          "its data ends in the file");
  try {
    const size_t element = SizeOf(tensor.dtype());
    Require(reinterpret_cast<uintptr_t>(begin) % element == 0, "its data is aligned");
    size_t filled = element;
    for (int64_t size : tensor.shape) filled *= static_cast<size_t>(size);
    Require(filled == tensor.bytes, "its shape fills its data");
  } catch (const ModelError&) {  // a type that the engine does not use
  }
  const volatile std::byte* bytes = begin;
  for (size_t i = 0; i < tensor.bytes; ++i) static_cast<void>(bytes[i]);  // a fault would show
}

}  // namespace weft::fuzz
