#include "engine/run/capture_file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <vector>

namespace weft {

CaptureFile::CaptureFile(const std::string& path)
    : path_(path),
      part_path_(path + ".part"),
      part_(part_path_, std::ios::binary | std::ios::trunc) {
  if (!part_) Fail(part_path_, errno);
  // Not only when all is captured.
  if (std::filesystem::is_directory(path)) Fail(path, EISDIR);
}

CaptureFile::~CaptureFile() {
  part_.close();
  std::error_code ignored;
  std::filesystem::remove(part_path_, ignored);
}

void CaptureFile::Fail(const std::string& path, int error) const {
  throw std::runtime_error("--capture: cannot write " + path + ": " + std::strerror(error));
}

void CaptureFile::Add(const std::string& name, const std::vector<float>& values) {
  const auto bytes = static_cast<int64_t>(values.size() * sizeof(float));
  const nlohmann::json entry = {
      {"dtype", "F32"}, {"shape", {values.size()}}, {"data_offsets", {bytes_, bytes_ + bytes}}};
  entries_ += ",\"" + name + "\":" + entry.dump();
  if (!part_.write(reinterpret_cast<const char*>(values.data()), bytes) && error_ == 0) {
    error_ = errno;
  }
  bytes_ += bytes;
  ++tensors_;
}

void CaptureFile::Finish(const std::map<std::string, std::string>& metadata) {
  if (!part_.flush()) Fail(part_path_, error_ != 0 ? error_ : errno);
  std::string header = "{\"__metadata__\":" + nlohmann::json(metadata).dump() + entries_ + "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');  // tensors start aligned
  const uint64_t length = header.size();
  std::ofstream out(path_, std::ios::binary | std::ios::trunc);
  out.write(reinterpret_cast<const char*>(&length), sizeof(length));
  out << header;
  // Block by block: << of a whole stream does not say that the disk became full on the way.
  std::ifstream part(part_path_, std::ios::binary);
  std::vector<char> block(size_t{1} << 20);
  for (int64_t left = bytes_; left > 0;) {
    const auto size = std::min(left, static_cast<int64_t>(block.size()));
    if (!part.read(block.data(), size)) {
      throw std::runtime_error("--capture: cannot read " + part_path_ + " back");
    }
    if (!out.write(block.data(), size)) break;
    left -= size;
  }
  if (!out.flush()) Fail(path_, errno);
}

}  // namespace weft
