#include "kernels/ops/cache.h"

#include "tests/kernels_cuda/gpu.h"

using namespace weft;
using namespace weft::test;
using namespace weft::gpu;

namespace {

// Values on which rounding shows: ties to even both ways, the carry into the exponent, overflow,
// NaN.
std::vector<float> Values(Random* random, int64_t n) {
  std::vector<float> v = random->Floats(n);
  for (uint32_t bits : {0x3F808000u, 0x3F818000u, 0x3F808001u, 0x3FFFFFFFu, 0x7F7FFFFFu,
                        0x80000000u, 0x7F800000u, 0x7F800001u, 0xFFFFFFFFu, 0x00000001u}) {
    std::memcpy(&v[static_cast<size_t>(random->Int(0, n))], &bits, sizeof(bits));
  }
  return v;
}

void CheckWrites(bool index, int32_t width, DType dtype, Random* random) {
  const int32_t P = 16;
  const int64_t rows = 50, stride = width + 3, elements = 5 * P * width;
  const std::vector<float> x = Values(random, rows * stride);
  std::vector<int64_t> slots;
  for (int64_t i = 0; i < rows; ++i) slots.push_back(i % 3 == 0 ? -1 : i * 37 % (5 * P));
  std::vector<char> want(static_cast<size_t>(elements) * SizeOf(dtype), 0x55);
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t slot = slots[static_cast<size_t>(r)];
    if (slot < 0) continue;
    const auto from = x.begin() + r * stride;
    const std::vector<char> bytes = Encode({from, from + width}, dtype);
    std::copy(bytes.begin(), bytes.end(), want.begin() + slot * static_cast<int64_t>(bytes.size()));
  }
  const Device<float> dx(x);
  const Device<int64_t> dslots(slots);
  const Device<char> cache(std::vector<char>(want.size(), 0x55));
  if (index) {
    CudaOps()->write_index(
        {rows, dx.data(), stride, dslots.data(), {cache.data(), dtype, P, width}},
        Context().exec());
  } else {
    CudaOps()->write_latent(
        {rows, dx.data(), stride, dslots.data(), {cache.data(), dtype, P, width}},
        Context().exec());
  }
  Check(cache.Host() == want, "width " + std::to_string(width) + " " + Name(dtype));
}

}  // namespace

GPU_TEST("write_latent and write_index put rounded rows into their slots, and nothing else") {
  Random random(1);
  for (DType dtype : {DType::kBF16, DType::kF32}) {
    for (int32_t width : {16, 19, 128, 576}) {
      CheckWrites(false, width, dtype, &random);
      CheckWrites(true, width, dtype, &random);
    }
  }
}

GPU_TEST("gather_latent copies rows unchanged and leaves none unwritten") {
  Random random(3);
  for (DType dtype : {DType::kBF16, DType::kF32}) {
    for (int32_t width : {48, 576, 19}) {
      const int32_t P = 8;
      const std::vector<char> cache = Encode(Values(&random, 5 * P * width), dtype);
      const Device<char> dcache(cache);
      for (int64_t count : {0, 1, 70}) {
        std::vector<int64_t> slots;
        std::vector<char> want;
        const auto bytes = static_cast<int64_t>(width * SizeOf(dtype));
        for (int64_t i = 0; i < count; ++i) {
          slots.push_back(i % 5 == 4 ? -1 : random.Int(0, 5 * P));
          if (slots.back() < 0) {
            want.insert(want.end(), static_cast<size_t>(bytes), 0);
            continue;
          }
          want.insert(want.end(), cache.begin() + slots.back() * bytes,
                      cache.begin() + (slots.back() + 1) * bytes);
        }
        const Device<int64_t> dslots(slots);
        const Device<char> out(std::vector<char>(want.size(), 0x55));
        CudaOps()->gather_latent(
            {count, dslots.data(), {dcache.data(), dtype, P, width}, out.data()}, Context().exec());
        Check(out.Host() == want, "count " + std::to_string(count));
      }
    }
  }
}
