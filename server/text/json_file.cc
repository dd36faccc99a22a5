#include "server/text/json_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "server/text/shown.h"

namespace weft::text {

using Json = nlohmann::json;

namespace {

// Deeper nesting than any model's files have is refused: copying and printing JSON recurse.
constexpr int kMaxDepth = 64;

class Descriptor {
 public:
  // Not blocking: a pipe in a file's place is to be refused, not waited for.
  explicit Descriptor(const std::filesystem::path& path)
      : fd_(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  const int fd_;
};

Json Parse(const std::string& text, const std::string& path) {
  std::string key;  // the last one before an error
  const auto watch = [&](int depth, Json::parse_event_t event, Json& value) {
    if (event == Json::parse_event_t::key) key = value.get_ref<const std::string&>();
    if (depth <= kMaxDepth) return true;
    throw std::runtime_error(path + ": is nested deeper than " + std::to_string(kMaxDepth));
  };
  try {
    return Json::parse(text, watch);
  } catch (const Json::exception& error) {
    std::string where;
    if (const auto* at = dynamic_cast<const Json::parse_error*>(&error)) {
      where = "at byte " + std::to_string(at->byte) + " of " + std::to_string(text.size()) + ": ";
    } else if (!key.empty()) {
      where = "at key '" + ShownText(key) + "' or behind it: ";
    }
    throw std::runtime_error(path + ": must be valid JSON; " + where +
                             ShownText(error.what(), 200));
  }
}

}  // namespace

std::string ReadFile(const std::filesystem::path& path) {
  const Descriptor file(path);
  struct stat info = {};
  if (file.get() < 0 || fstat(file.get(), &info) != 0) {
    throw std::runtime_error(path.string() + ": cannot be opened: " + std::strerror(errno));
  }
  if (!S_ISREG(info.st_mode)) throw std::runtime_error(path.string() + ": is not a regular file");
  std::string text(static_cast<size_t>(info.st_size), '\0');
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t count = read(file.get(), text.data() + done, text.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      throw std::runtime_error(path.string() + ": cannot be read: " + std::strerror(errno));
    }
    if (count == 0) break;
    done += static_cast<size_t>(count);
  }
  text.resize(done);
  return text;
}

Json LoadJson(const std::filesystem::path& path) {
  const std::string text = ReadFile(path);
  if (text.empty()) throw std::runtime_error(path.string() + ": must be not empty; got 0 bytes");
  Json json = Parse(text, path.string());
  if (!json.is_object()) {
    throw std::runtime_error(path.string() + ": must be a JSON object; got " +
                             std::string(json.type_name()));
  }
  return json;
}

const Json* JsonFile::Find(const char* key) const {
  const auto it = json_.find(key);
  return it == json_.end() || it->is_null() ? nullptr : &*it;
}

void JsonFile::Fail(const char* key, const std::string& rule) const {
  const Json* value = Find(key);
  throw std::runtime_error(path_.string() + ": " + key + " must be " + rule + "; got " +
                           (value == nullptr ? "none" : Shown(*value)));
}

std::optional<int64_t> JsonFile::Integer(const char* key) const {
  const Json* value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number_integer()) Fail(key, "an integer");
  return value->get<int64_t>();
}

std::optional<double> JsonFile::Number(const char* key) const {
  const Json* value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) Fail(key, "a number");
  return value->get<double>();
}

std::optional<bool> JsonFile::Bool(const char* key) const {
  const Json* value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) Fail(key, "true or false");
  return value->get<bool>();
}

std::optional<std::string> JsonFile::String(const char* key) const {
  const Json* value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) Fail(key, "a string");
  return value->get<std::string>();
}

}  // namespace weft::text
