#include "tests/fuzz/mutate.h"

#include <algorithm>
#include <cstring>

namespace weft::fuzz {
namespace {

// Where arithmetic and comparisons turn over.
constexpr uint64_t kNumbers[] = {0,          1,
                                 2,          7,
                                 8,          15,
                                 16,         64,
                                 127,        128,
                                 255,        256,
                                 4095,       65535,
                                 65536,      (1ull << 31) - 1,
                                 1ull << 31, (1ull << 32) - 1,
                                 1ull << 32, (1ull << 53) + 1,
                                 1ull << 62, (1ull << 63) - 1,
                                 1ull << 63, ~0ull,
                                 ~0ull - 7};
constexpr const char* kDecimals[] = {"1e308", "1e-308", "1e999", "0.5", "-0.0", "1.0"};

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

int HexDigit(char c) {
  if (IsDigit(c)) return c - '0';
  return (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : 0;
}

std::string Unescape(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\' || i + 1 == text.size()) {
      out += text[i];
    } else if (text[i + 1] == 'x' && i + 3 < text.size()) {
      out += static_cast<char>(HexDigit(text[i + 2]) * 16 + HexDigit(text[i + 3]));
      i += 3;
    } else {
      out += text[++i];
    }
  }
  return out;
}

}  // namespace

std::vector<std::string> ParseDictionary(const std::string& text) {
  std::vector<std::string> words;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    const size_t open = line.find('"'), close = line.rfind('"');
    if (!line.starts_with('#') && open < close && close != std::string::npos) {
      words.push_back(Unescape(line.substr(open + 1, close - open - 1)));
    }
    begin = end + 1;
  }
  return words;
}

Mutator::Mutator(const std::vector<std::string>* corpus, const std::vector<std::string>* words,
                 uint64_t seed, size_t max_length)
    : corpus_(*corpus), words_(*words), random_(seed), max_length_(max_length) {}

std::string Mutator::Next() {
  std::string input = Any(corpus_);
  do {
    Mutate(&input);
  } while (Below(3) != 0);
  if (input.size() > max_length_) input.resize(max_length_);
  return input;
}

std::string Mutator::Piece(const std::string& of) {
  const size_t begin = Below(of.size() + 1);
  return of.substr(begin, Below(of.size() - begin + 1));
}

// In binary of any width or in decimal; some off by one, some negative.
std::string Mutator::Number() {
  uint64_t value = kNumbers[Below(std::size(kNumbers))];
  if (Below(4) == 0) value = random_() >> Below(64);
  if (Below(2) == 0) {
    std::string bytes(8, '\0');
    std::memcpy(bytes.data(), &value, 8);
    return bytes.substr(0, size_t{1} << Below(4));
  }
  if (Below(6) == 0) return kDecimals[Below(std::size(kDecimals))];
  return (Below(4) == 0 ? "-" : "") + std::to_string(value);
}

std::string Mutator::Word() {
  return words_.empty() || Below(4) == 0 ? Piece(Any(corpus_)) : Any(words_);
}

// Inserted, or over what was there.
void Mutator::Put(std::string* input, const std::string& piece) {
  const size_t at = Below(input->size() + 1);
  input->replace(at, Below(2) == 0 ? 0 : std::min(piece.size(), input->size() - at), piece);
}

// The digits at or behind a random place.
void Mutator::ReplaceDigits(std::string* input) {
  const auto begin = std::find_if(
      input->begin() + static_cast<std::ptrdiff_t>(Below(input->size())), input->end(), IsDigit);
  const auto end = std::find_if_not(begin, input->end(), IsDigit);
  const std::string number = Number();
  input->replace(begin, end, number);
}

// Deep nesting, long names, many elements.
void Mutator::Repeat(std::string* input) {
  const std::string piece = Below(2) == 0 ? std::string(1, "[{\"0 "[Below(5)]) : Word();
  std::string run;
  for (size_t count = size_t{1} << Below(17); count > 0 && run.size() < max_length_; --count) {
    run += piece;
  }
  Put(input, run);
}

void Mutator::Mutate(std::string* input) {
  const size_t size = input->size(), at = Below(size);
  if (size == 0) return Put(input, Word());
  switch (Below(12)) {
    case 0:
    case 1:
      (*input)[at] = static_cast<char>((*input)[at] ^ (1 << Below(8)));
      break;
    case 2:
      (*input)[at] = static_cast<char>(random_());
      break;
    case 3:
      input->erase(at, Below(std::min<size_t>(size - at, 32) + 1));
      break;
    case 4:
      input->resize(Below(3) == 0 ? at : size - std::min<size_t>(size, Below(16)));
      break;
    case 5:
      Put(input, Piece(*input));
      break;
    case 6:
      *input = input->substr(0, at) + Piece(Any(corpus_));
      break;
    case 7:
      Put(input, Number());
      break;
    case 8:
      ReplaceDigits(input);
      break;
    case 9:
    case 10:
      Put(input, Word());
      break;
    default:
      if (Below(4) == 0) Repeat(input);
  }
}

}  // namespace weft::fuzz
