// Mutations of a corpus: bytes, numbers, words of a dictionary, pieces of other inputs.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace weft::fuzz {

// The words of a libFuzzer dictionary: lines of [name=]"text" with \xNN, \" and \\; # begins a
// comment.
std::vector<std::string> ParseDictionary(const std::string& text);

class Mutator {
 public:
  // Both must outlive the mutator; the corpus is not empty, `words` may be.
  Mutator(const std::vector<std::string>* corpus, const std::vector<std::string>* words,
          uint64_t seed, size_t max_length);

  std::string Next();

 private:
  // Not std::uniform_int_distribution, which is not the same everywhere.
  size_t Below(size_t n) { return n == 0 ? 0 : static_cast<size_t>(random_() % n); }
  const std::string& Any(const std::vector<std::string>& list) { return list[Below(list.size())]; }
  std::string Piece(const std::string& of);
  std::string Number();
  std::string Word();
  void Mutate(std::string* input);
  void Put(std::string* input, const std::string& piece);
  void ReplaceDigits(std::string* input);
  void Repeat(std::string* input);

  const std::vector<std::string>& corpus_;
  const std::vector<std::string>& words_;
  std::mt19937_64 random_;
  size_t max_length_;
};

}  // namespace weft::fuzz
