// Which rank holds a position of a sequence, and in which of its slots.
// Plain C++ for host and device; every other piece of code asks here and never computes i % G.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define WEFT_HD __host__ __device__ inline
#else
// Always inlined: these are used in files compiled for several instruction sets, and no copy made
// for a wide one may be linked in for a narrow machine.
#define WEFT_HD inline __attribute__((always_inline))
#endif

namespace weft {

// Output function of SplitMix64 for state x + 0x9E3779B97F4A7C15 (Steele, Lea, Flood 2014).
WEFT_HD uint64_t SplitMix64(uint64_t x) {
  uint64_t z = x + 0x9E3779B97F4A7C15ull;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

// a / b and a % b of a >= 0 and b > 0. Where 64 bits are divided a GPU takes a hundred
// instructions.
WEFT_HD int64_t Quotient(int64_t a, int32_t b) {
#if defined(__CUDA_ARCH__)
  if (a >> 32 == 0) return static_cast<uint32_t>(a) / static_cast<uint32_t>(b);
#endif
  return a / b;
}
WEFT_HD int64_t Remainder(int64_t a, int32_t b) { return a - Quotient(a, b) * b; }

// x % n of any x; the GPU's way is 2^32 (high % n) + low, remainders of 32 bits all along.
WEFT_HD uint32_t HashRemainder(uint64_t x, uint32_t n) {
#if defined(__CUDA_ARCH__)
  if (n <= 0xFFFF) {
    const uint32_t carry = (0u - n) % n;  // 2^32 % n
    return (static_cast<uint32_t>(x >> 32) % n * carry + static_cast<uint32_t>(x) % n) % n;
  }
#endif
  return static_cast<uint32_t>(x % n);
}

// Positions are cut into blocks of `block` tokens; G neighbouring blocks form a super-group, which
// gives exactly one block to every rank. Round-robin keeps the same order in every super-group;
// rotated turns the order by a hash of the super-group, so that no period of the text resonates
// with G. A block of ceil(N/G) without rotation is contiguous placement of a known N (lab only).
struct Placement {
  int32_t ranks = 1;  // G >= 1
  int32_t block = 1;  // b >= 1 tokens
  bool rotated = true;

  // Turn of super-group s, in [0, G).
  WEFT_HD int32_t Turn(int64_t s) const {
    if (!rotated) return 0;
    return static_cast<int32_t>(
        HashRemainder(SplitMix64(static_cast<uint64_t>(s)), static_cast<uint32_t>(ranks)));
  }

  WEFT_HD int32_t Rank(int64_t position) const {
    const int64_t b = Quotient(position, block), s = Quotient(b, ranks);
    return (static_cast<int32_t>(b - s * ranks) + Turn(s)) % ranks;
  }

  // Index of the position among those of its own rank, counted from 0.
  WEFT_HD int64_t Slot(int64_t position) const {
    const int64_t b = Quotient(position, block);
    return Quotient(b, ranks) * block + (position - b * block);
  }

  // Inverse of (Rank, Slot). Ascending in slot for a fixed rank.
  WEFT_HD int64_t Position(int32_t rank, int64_t slot) const {
    const int64_t s = Quotient(slot, block);
    return (s * ranks + BlockInGroup(rank, s)) * block + (slot - s * block);
  }

  // How many positions in [0, t] live on `rank`; 0 for t < 0. They are its slots 0 .. count-1.
  WEFT_HD int64_t VisibleCount(int32_t rank, int64_t t) const {
    if (t < 0) return 0;
    const int64_t group = static_cast<int64_t>(ranks) * block;
    const int64_t s = t / group;
    const int64_t in_own_block = t % group + 1 - BlockInGroup(rank, s) * block;
    const int64_t part = in_own_block < 0 ? 0 : in_own_block > block ? block : in_own_block;
    return s * block + part;
  }

  // max over ranks of VisibleCount(rank, t).
  WEFT_HD int64_t MaxVisibleCount(int64_t t) const {
    if (t < 0) return 0;
    const int64_t group = static_cast<int64_t>(ranks) * block;
    const int64_t rest = t % group + 1;
    return t / group * block + (rest < block ? rest : block);
  }

 private:
  // Which of the G blocks of super-group s belongs to `rank`.
  WEFT_HD int64_t BlockInGroup(int32_t rank, int64_t s) const {
    return (rank - Turn(s) + ranks) % ranks;
  }
};

}  // namespace weft
