// Plain structs to bytes and back: little-endian, fixed widths, no padding. Reading past the end or
// leaving bytes over throws, so that a truncated frame is never half understood.
#pragma once

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace weft {

class WireWriter {
 public:
  template <typename T>
  void Put(const T& value) {
    static_assert(std::is_arithmetic_v<T> || std::is_enum_v<T>);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(T));
  }
  void Put(const std::string& text) {
    Put(static_cast<uint32_t>(text.size()));
    bytes_ += text;
  }
  template <typename T>
  void Put(const std::vector<T>& values) {
    static_assert(std::is_arithmetic_v<T>);
    Put(static_cast<uint32_t>(values.size()));
    bytes_.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
  }
  std::string Take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

class WireReader {
 public:
  explicit WireReader(std::string_view bytes) : bytes_(bytes) {}

  template <typename T>
  void Get(T* value) {
    static_assert(std::is_arithmetic_v<T> || std::is_enum_v<T>);
    std::memcpy(value, Need(sizeof(T)), sizeof(T));
  }
  void Get(std::string* text) {
    uint32_t size;
    Get(&size);
    const char* begin = Need(size);
    text->assign(begin, size);
  }
  template <typename T>
  void Get(std::vector<T>* values) {
    static_assert(std::is_arithmetic_v<T>);
    uint32_t size;
    Get(&size);
    const char* begin = Need(size_t{size} * sizeof(T));
    values->resize(size);
    if (size > 0) std::memcpy(values->data(), begin, size_t{size} * sizeof(T));
  }
  void Finish() const {
    if (!bytes_.empty()) throw std::runtime_error("frame has bytes left over");
  }

 private:
  const char* Need(size_t size) {
    if (bytes_.size() < size) throw std::runtime_error("frame is truncated");
    const char* begin = bytes_.data();
    bytes_.remove_prefix(size);
    return begin;
  }
  std::string_view bytes_;
};

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the wire format is little-endian");

}  // namespace weft
