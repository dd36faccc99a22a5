#include "server/text/utf8.h"

#include <cstdint>
#include <cstring>

namespace weft::text {
namespace {

// What a lead byte promises. The second byte's range excludes overlong forms, surrogates and code
// points above U+10FFFF (Unicode 3.9, table 3-7); later bytes are always 80..BF.
struct Lead {
  size_t length;  // 0: no lead byte
  uint8_t second_min;
  uint8_t second_max;
};

Lead Classify(uint8_t byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xC2) return {0, 0, 0};
  if (byte < 0xE0) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4, 0x80, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

// Length of the leading run of ASCII, eight bytes at a time.
size_t AsciiPrefix(std::string_view bytes) {
  size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) {
    uint64_t word;
    std::memcpy(&word, bytes.data() + i, 8);
    if ((word & 0x8080808080808080u) != 0) break;
  }
  while (i < bytes.size() && static_cast<uint8_t>(bytes[i]) < 0x80) ++i;
  return i;
}

}  // namespace

Utf8Piece NextUtf8(std::string_view bytes) {
  const Lead lead = Classify(static_cast<uint8_t>(bytes[0]));
  if (lead.length == 0) return {1, Utf8Kind::kInvalid};
  for (size_t i = 1; i < lead.length; ++i) {
    if (i == bytes.size()) return {i, Utf8Kind::kIncomplete};
    const uint8_t byte = static_cast<uint8_t>(bytes[i]);
    const uint8_t min = i == 1 ? lead.second_min : 0x80;
    const uint8_t max = i == 1 ? lead.second_max : 0xBF;
    if (byte < min || byte > max) return {i, Utf8Kind::kInvalid};
  }
  return {lead.length, Utf8Kind::kCharacter};
}

bool IsValidUtf8(std::string_view bytes) {
  while (true) {
    bytes.remove_prefix(AsciiPrefix(bytes));
    if (bytes.empty()) return true;
    const Utf8Piece piece = NextUtf8(bytes);
    if (piece.kind != Utf8Kind::kCharacter) return false;
    bytes.remove_prefix(piece.length);
  }
}

std::string ToValidUtf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  while (!bytes.empty()) {
    const Utf8Piece piece = NextUtf8(bytes);
    if (piece.kind == Utf8Kind::kCharacter) {
      out.append(bytes.substr(0, piece.length));
    } else {
      out.append(kReplacementCharacter);
    }
    bytes.remove_prefix(piece.length);
  }
  return out;
}

char32_t DecodeUtf8(std::string_view bytes) {
  const auto at = [bytes](size_t i) {
    return static_cast<char32_t>(static_cast<uint8_t>(bytes[i]));
  };
  if (at(0) < 0x80) return at(0);
  if (at(0) < 0xE0) return (at(0) & 0x1F) << 6 | (at(1) & 0x3F);
  if (at(0) < 0xF0) return (at(0) & 0x0F) << 12 | (at(1) & 0x3F) << 6 | (at(2) & 0x3F);
  return (at(0) & 0x07) << 18 | (at(1) & 0x3F) << 12 | (at(2) & 0x3F) << 6 | (at(3) & 0x3F);
}

namespace {

bool IsPythonSpace(char32_t c) {
  return (0x9 <= c && c <= 0xD) || (0x1C <= c && c <= 0x20) || c == 0x85 || c == 0xA0 ||
         c == 0x1680 || (0x2000 <= c && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
         c == 0x205F || c == 0x3000;
}

bool IsSpaceAt(std::string_view bytes, size_t* length) {
  const Utf8Piece piece = NextUtf8(bytes);
  *length = piece.length;
  return piece.kind == Utf8Kind::kCharacter && IsPythonSpace(DecodeUtf8(bytes));
}

}  // namespace

std::string_view TrimSpace(std::string_view utf8) {
  size_t length = 0;
  while (!utf8.empty() && IsSpaceAt(utf8, &length)) utf8.remove_prefix(length);
  while (!utf8.empty()) {
    size_t start = utf8.size() - 1;
    while (start > 0 && (static_cast<unsigned char>(utf8[start]) & 0xC0) == 0x80) --start;
    if (!IsSpaceAt(utf8.substr(start), &length) || start + length != utf8.size()) break;
    utf8.remove_suffix(length);
  }
  return utf8;
}

void AppendUtf8(char32_t code_point, std::string* out) {
  const auto put = [out](char32_t byte) { out->push_back(static_cast<char>(byte)); };
  const auto put_tail = [&](int shift) { put(0x80 | (code_point >> shift & 0x3F)); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | code_point >> 6);
    put_tail(0);
  } else if (code_point < 0x10000) {
    put(0xE0 | code_point >> 12);
    put_tail(6);
    put_tail(0);
  } else {
    put(0xF0 | code_point >> 18);
    put_tail(12);
    put_tail(6);
    put_tail(0);
  }
}

}  // namespace weft::text
