#include "server/text/byte_level.h"

#include <array>
#include <cstdint>

#include "server/text/utf8.h"

namespace weft::text {
namespace {

constexpr char32_t kFirstStandIn = 0x100;  // unprintable bytes take U+0100, U+0101, ... in order
constexpr char32_t kAlphabetEnd = 0x144;   // 68 of them

bool IsPrintable(char32_t byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) ||
         (byte >= 0xAE && byte <= 0xFF);
}

struct Alphabet {
  std::array<char32_t, 256> character;
  std::array<int16_t, kAlphabetEnd> byte;  // -1: not in the alphabet

  Alphabet() {
    byte.fill(-1);
    char32_t stand_in = kFirstStandIn;
    for (int16_t b = 0; b < 256; ++b) {
      const char32_t c =
          IsPrintable(static_cast<char32_t>(b)) ? static_cast<char32_t>(b) : stand_in++;
      character[static_cast<size_t>(b)] = c;
      byte[c] = b;
    }
  }
};

const Alphabet& TheAlphabet() {
  static const Alphabet alphabet;
  return alphabet;
}

}  // namespace

std::optional<std::string> BytesFromSpelling(std::string_view spelling) {
  const Alphabet& alphabet = TheAlphabet();
  std::string bytes;
  while (!spelling.empty()) {
    const Utf8Piece piece = NextUtf8(spelling);
    if (piece.kind != Utf8Kind::kCharacter) return std::nullopt;
    const char32_t c = DecodeUtf8(spelling);
    if (c >= kAlphabetEnd || alphabet.byte[c] < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(alphabet.byte[c]));
    spelling.remove_prefix(piece.length);
  }
  return bytes;
}

std::string SpellByte(unsigned char byte) {
  std::string spelling;
  AppendUtf8(TheAlphabet().character[byte], &spelling);
  return spelling;
}

}  // namespace weft::text
