#include "engine/model/safetensors.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "engine/model/json_keys.h"
#include "engine/model/model_error.h"
#include "engine/model/shown.h"

namespace weft {

using nlohmann::json;

namespace {

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kMaxHeader = 100'000'000;  // the limit of the reference implementation
constexpr size_t kMaxDimensions = 8;

// Bytes of one element; 0 for types that this reader has never heard of.
uint64_t ElementSize(const std::string& dtype) {
  static const struct {
    const char* name;
    uint64_t size;
  } kTypes[] = {{"F64", 8},  {"I64", 8},     {"U64", 8},     {"F32", 4},    {"I32", 4}, {"U32", 4},
                {"F16", 2},  {"I16", 2},     {"U16", 2},     {"BF16", 2},   {"I8", 1},  {"U8", 1},
                {"BOOL", 1}, {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"F8_E8M0", 1}};
  for (const auto& type : kTypes) {
    if (dtype == type.name) return type.size;
  }
  return 0;
}

// The header's JSON. A name that occurs twice would silently hide one of its tensors.
json ParseHeader(const MappedFile& file, uint64_t length) {
  const char* text = reinterpret_cast<const char*>(file.data() + kLengthBytes);
  std::set<std::string> names;
  std::string twice;
  const auto watch = [&](int depth, json::parse_event_t event, json& key) {
    if (depth > kMaxJsonDepth) {
      throw ModelError(file.path() + ": header is nested deeper than " +
                       std::to_string(kMaxJsonDepth));
    }
    if (event == json::parse_event_t::key && depth == 1) {
      if (!names.insert(key.get<std::string>()).second) twice = key.get<std::string>();
    }
    return true;
  };
  json header;
  try {
    header = json::parse(text, text + length, watch);
  } catch (const json::exception& e) {
    throw ModelError(file.path() + ": header is not valid JSON: " + ShownText(e.what(), 200));
  }
  if (!twice.empty()) {
    throw ModelError(file.path() + ": tensor '" + ShownText(twice) + "': listed twice");
  }
  if (!header.is_object()) throw ModelError(file.path() + ": header must be a JSON object");
  return header;
}

uint64_t HeaderLength(const MappedFile& file) {
  if (file.size() < kLengthBytes) {
    throw ModelError(file.path() + ": truncated: " + std::to_string(file.size()) +
                     " bytes, a header needs at least 8");
  }
  uint64_t length = 0;
  std::memcpy(&length, file.data(), kLengthBytes);
  if (length > kMaxHeader || length > file.size() - kLengthBytes) {
    throw ModelError(file.path() + ": header length " + std::to_string(length) +
                     " exceeds the file of " + std::to_string(file.size()) + " bytes or " +
                     std::to_string(kMaxHeader));
  }
  return length;
}

std::vector<int64_t> ReadShape(const json& entry, const Tensor& tensor) {
  const auto it = entry.find("shape");
  if (it == entry.end() || !it->is_array() || it->size() > kMaxDimensions) {
    tensor.Fail("shape must be a list of at most 8 sizes");
  }
  std::vector<int64_t> shape;
  for (const json& size : *it) {
    if (!size.is_number_unsigned() || size.get<uint64_t>() > INT64_MAX) {
      tensor.Fail("shape must hold non-negative integers");
    }
    shape.push_back(size.get<int64_t>());
  }
  return shape;
}

// Elements times size, or -1 where that does not fit.
int64_t ByteCount(const std::vector<int64_t>& shape, uint64_t element) {
  int64_t bytes = static_cast<int64_t>(element);
  for (int64_t size : shape) {
    if (__builtin_mul_overflow(bytes, size, &bytes)) return -1;
  }
  return bytes;
}

Tensor ReadEntry(const std::string& name, const json& entry, const std::byte* data, uint64_t size,
                 const std::shared_ptr<const MappedFile>& file) {
  Tensor tensor;
  tensor.name = name;
  tensor.file = file;
  if (!entry.is_object()) tensor.Fail("its header entry must be a JSON object");
  const auto dtype = entry.find("dtype");
  if (dtype == entry.end() || !dtype->is_string()) tensor.Fail("dtype must be a string");
  tensor.dtype_name = dtype->get<std::string>();
  tensor.shape = ReadShape(entry, tensor);
  const auto it = entry.find("data_offsets");
  if (it == entry.end() || !it->is_array() || it->size() != 2 || !(*it)[0].is_number_unsigned() ||
      !(*it)[1].is_number_unsigned()) {
    tensor.Fail("data_offsets must be two non-negative integers");
  }
  const uint64_t begin = (*it)[0].get<uint64_t>();
  const uint64_t end = (*it)[1].get<uint64_t>();
  const std::string range = std::to_string(begin) + " to " + std::to_string(end);
  if (begin > end) tensor.Fail("data_offsets must ascend, got " + range);
  if (end > size) {
    tensor.Fail("data_offsets " + range + " exceed the file's " + std::to_string(size) +
                " bytes of data: truncated?");
  }
  tensor.data = data + begin;
  tensor.bytes = end - begin;
  const uint64_t element = ElementSize(tensor.dtype_name);
  if (element && ByteCount(tensor.shape, element) != static_cast<int64_t>(tensor.bytes)) {
    tensor.Fail("shape " + ShapeText(tensor.shape) + " of " + ShownText(tensor.dtype_name) +
                " does not fill its " + std::to_string(tensor.bytes) + " bytes");
  }
  return tensor;
}

// Bytes that no tensor has are not of this format: something else was hidden there, or a header is
// of another file. The reference implementation refuses them too.
void RefuseGaps(const MappedFile& file, const std::byte* data, const std::vector<Tensor>& tensors) {
  const std::byte* end = data;
  for (const Tensor& tensor : tensors) {
    const auto* begin = static_cast<const std::byte*>(tensor.data);
    if (begin != end) {
      tensor.Fail("its data must follow the data before it, got " + std::to_string(begin - end) +
                  " bytes between them");
    }
    end = begin + tensor.bytes;
  }
  const ptrdiff_t rest = file.data() + file.size() - end;
  if (rest == 0) return;
  throw ModelError(file.path() + ": must end with its last tensor, got " + std::to_string(rest) +
                   " bytes behind it");
}

}  // namespace

void Tensor::Fail(const std::string& rule) const {
  throw ModelError(file->path() + ": tensor '" + ShownText(name) + "': " + rule);
}

DType Tensor::dtype() const {
  DType type;
  if (dtype_name == "F32") {
    type = DType::kF32;
  } else if (dtype_name == "BF16") {
    type = DType::kBF16;
  } else if (dtype_name == "F16") {
    type = DType::kF16;
  } else if (dtype_name == "F8_E4M3") {
    type = DType::kF8E4M3;
  } else {
    Fail("dtype must be F32, BF16, F16 or F8_E4M3, got " + ShownText(dtype_name));
  }
  if (reinterpret_cast<uintptr_t>(data) % SizeOf(type)) {
    Fail("its data is not aligned for " + dtype_name + ": rewrite the file with a current writer");
  }
  return type;
}

std::string ShapeText(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    text += (i ? ", " : "") + std::to_string(shape[i]);
  }
  return text + "]";
}

std::vector<Tensor> ReadSafetensors(const std::string& path) {
  const auto file = std::make_shared<const MappedFile>(path);
  const uint64_t header_length = HeaderLength(*file);
  const json header = ParseHeader(*file, header_length);
  const uint64_t prefix = kLengthBytes + header_length;
  std::vector<Tensor> tensors;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    tensors.push_back(ReadEntry(name, entry, file->data() + prefix, file->size() - prefix, file));
  }
  const auto at = [](const Tensor& t) { return static_cast<const std::byte*>(t.data); };
  std::sort(tensors.begin(), tensors.end(), [&](const Tensor& a, const Tensor& b) {
    return at(a) != at(b) ? at(a) < at(b) : a.bytes < b.bytes;
  });
  for (size_t i = 1; i < tensors.size(); ++i) {
    if (at(tensors[i]) < at(tensors[i - 1]) + tensors[i - 1].bytes) {
      tensors[i].Fail("its data overlaps tensor '" + ShownText(tensors[i - 1].name) + "'");
    }
  }
  RefuseGaps(*file, file->data() + prefix, tensors);
  return tensors;
}

}  // namespace weft
