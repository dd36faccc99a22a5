#include "tools/chat/text_file.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "server/text/utf8.h"

namespace weft::chat {

constexpr size_t kLongestText = size_t{64} << 20;  // and there are files without an end

std::string Utf8Error(std::string_view text, const std::string& name) {
  if (text::IsValidUtf8(text)) return "";
  size_t at = 0;
  size_t line = 1;
  while (at < text.size()) {
    const text::Utf8Piece piece = text::NextUtf8(text.substr(at));
    if (piece.kind != text::Utf8Kind::kCharacter) break;
    if (text[at] == '\n') ++line;
    at += piece.length;
  }
  return name + " must be text in UTF-8; got another byte at offset " + std::to_string(at) +
         ", in line " + std::to_string(line) + " (iconv -f latin1 -t utf-8 converts, for example)";
}

bool ReadText(const std::string& path, std::string* text, std::string* error) {
  std::ifstream file(path, std::ios::binary);
  std::string all;
  char buffer[1 << 16];
  while (file.read(buffer, sizeof(buffer)) || file.gcount() > 0) {
    all.append(buffer, static_cast<size_t>(file.gcount()));
    if (all.size() > kLongestText) {
      *error = "'" + path + "' is longer than 64 MiB, more than a server takes";
      return false;
    }
  }
  if (!file.is_open() || file.bad()) {  // opening a directory works, reading it does not
    *error = "cannot read '" + path + "': " + std::strerror(errno);
    return false;
  }
  *text = std::move(all);
  while (!text->empty() && (text->back() == '\n' || text->back() == '\r')) text->pop_back();
  *error = Utf8Error(*text, "'" + path + "'");
  return error->empty();
}

}  // namespace weft::chat
