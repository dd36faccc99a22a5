// A safetensors file written tensor by tensor. Its header comes first and is known last, so the
// data waits in PATH.part until Finish; an engine that dies leaves PATH as it was.
#pragma once

#include <cstdint>
#include <fstream>
#include <map>
#include <string>
#include <vector>

namespace weft {

class CaptureFile {
 public:
  // Throws std::runtime_error when PATH.part cannot be written.
  explicit CaptureFile(const std::string& path);
  ~CaptureFile();  // removes PATH.part
  CaptureFile(const CaptureFile&) = delete;
  CaptureFile& operator=(const CaptureFile&) = delete;

  // A tensor of one dimension. A write that fails is told by Finish.
  void Add(const std::string& name, const std::vector<float>& values);
  // Writes PATH; throws std::runtime_error when it, or a tensor before, could not be written.
  void Finish(const std::map<std::string, std::string>& metadata);

  int64_t tensors() const { return tensors_; }
  int64_t bytes() const { return bytes_; }

 private:
  [[noreturn]] void Fail(const std::string& path, int error) const;

  const std::string path_, part_path_;
  std::ofstream part_;
  std::string entries_;  // of the header, as JSON
  int64_t tensors_ = 0, bytes_ = 0;
  int error_ = 0;  // errno of the first write that failed
};

}  // namespace weft
