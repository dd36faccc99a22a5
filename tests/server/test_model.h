// A model folder without weights: each byte is a token, its id the byte's value.
#pragma once

#include <filesystem>
#include <string>

namespace weft::server {

inline constexpr int kBos = 256;
inline constexpr int kEos = 257;
inline constexpr int kUser = 258;
inline constexpr int kAssistant = 259;
inline constexpr int kThink = 260;
inline constexpr int kEndThink = 261;
inline constexpr int kVocabulary = 262;

// A folder that is removed with the object.
class TempFolder {
 public:
  TempFolder();
  ~TempFolder();
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// Writes the folder's files, and returns it.
std::string WriteTestModel(const std::filesystem::path& folder);

void WriteFile(const std::filesystem::path& path, const std::string& text);
std::string ReadFile(const std::filesystem::path& path);

}  // namespace weft::server
