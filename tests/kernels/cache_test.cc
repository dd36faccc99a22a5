#include "kernels/ops/cache.h"

#include "tests/kernels/common.h"

using namespace weft;
using namespace weft::test;

namespace {

constexpr DType kDTypes[] = {DType::kBF16, DType::kF32};

// Values on which rounding shows: ties to even both ways, the carry into the exponent, overflow,
// NaN.
std::vector<float> Values(Random* random, int64_t n) {
  std::vector<float> v = random->Floats(n);
  const uint32_t edges[] = {0x3F808000u, 0x3F818000u, 0x3F808001u, 0x3FFFFFFFu, 0x7F7FFFFFu,
                            0x80000000u, 0x7F800000u, 0x7F800001u, 0xFFFFFFFFu, 0x00000001u};
  for (uint32_t bits : edges) {
    std::memcpy(&v[static_cast<size_t>(random->Int(0, n))], &bits, sizeof(bits));
  }
  return v;
}

template <typename Write>
void CheckEverywhere(const std::vector<char>& want, Write write) {
  ThreadPool pool(3);
  for (const Ops* ops : AllOps()) {
    for (const Exec& exec : {Exec{}, pool.exec()}) {
      std::vector<char> got(want.size(), 0x55);
      write(*ops, exec, &got);
      INFO(ops->name);
      CHECK(got == want);
    }
  }
}

void Put(std::vector<char>* out, int64_t element, float x, DType dtype) {
  const std::vector<char> bytes = Encode({x}, dtype);
  std::copy(bytes.begin(), bytes.end(),
            out->begin() + element * static_cast<int64_t>(bytes.size()));
}

// Distinct slots of 5 pages of P, in any order, some of them -1.
std::vector<int64_t> Slots(Random* random, int64_t rows, int64_t P) {
  std::vector<int64_t> slots;
  for (int64_t i = 0; i < 5 * P; ++i) slots.push_back(i);
  for (size_t i = slots.size() - 1; i > 0; --i) {
    std::swap(slots[i], slots[static_cast<size_t>(random->Int(0, static_cast<int64_t>(i)))]);
  }
  slots.resize(static_cast<size_t>(rows));
  for (int64_t i = 0; i < rows; i += 3) slots[static_cast<size_t>(i)] = -1;
  return slots;
}

}  // namespace

TEST_CASE("write_latent puts rounded rows into their slots and touches nothing else") {
  Random random(1);
  for (DType dtype : kDTypes) {
    for (int32_t width : {16, 80, 576, 19}) {
      const int64_t P = 8, rows = 30, stride = width + 1;
      const std::vector<float> x = Values(&random, rows * stride);
      const std::vector<int64_t> slots = Slots(&random, rows, P);
      std::vector<char> want(static_cast<size_t>(5 * P * width) * SizeOf(dtype), 0x55);
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t slot = slots[static_cast<size_t>(r)];
        for (int64_t i = 0; i < width && slot >= 0; ++i) {
          Put(&want, slot * width + i, x[static_cast<size_t>(r * stride + i)], dtype);
        }
      }
      CheckEverywhere(want, [&](const Ops& ops, const Exec& exec, std::vector<char>* cache) {
        ops.write_latent({rows, x.data(), stride, slots.data(), {cache->data(), dtype, P, width}},
                         exec);
      });
    }
  }
}

TEST_CASE("write_index puts keys with dimensions outermost") {
  Random random(2);
  for (DType dtype : kDTypes) {
    for (int32_t P : {16, 64}) {
      const int32_t di = 24;
      const int64_t rows = 50, stride = di + 3;
      const std::vector<float> x = Values(&random, rows * stride);
      const std::vector<int64_t> slots = Slots(&random, rows, P);
      std::vector<char> want(static_cast<size_t>(5 * P * di) * SizeOf(dtype), 0x55);
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t slot = slots[static_cast<size_t>(r)];
        for (int64_t d = 0; d < di && slot >= 0; ++d) {
          Put(&want, (slot / P * di + d) * P + slot % P, x[static_cast<size_t>(r * stride + d)],
              dtype);
        }
      }
      CheckEverywhere(want, [&](const Ops& ops, const Exec& exec, std::vector<char>* cache) {
        ops.write_index({rows, x.data(), stride, slots.data(), {cache->data(), dtype, P, di}},
                        exec);
      });
    }
  }
}

TEST_CASE("gather_latent copies rows unchanged") {
  Random random(3);
  for (DType dtype : kDTypes) {
    const int32_t width = 48, P = 8;
    std::vector<char> cache = Encode(Values(&random, 5 * P * width), dtype);
    for (int64_t count : {0, 1, 70}) {
      std::vector<int64_t> slots;
      std::vector<char> want;
      for (int64_t i = 0; i < count; ++i) {
        slots.push_back(random.Int(0, 5 * P));
        const auto bytes = static_cast<int64_t>(width * SizeOf(dtype));
        want.insert(want.end(), cache.begin() + slots.back() * bytes,
                    cache.begin() + (slots.back() + 1) * bytes);
      }
      CheckEverywhere(want, [&](const Ops& ops, const Exec& exec, std::vector<char>* out) {
        ops.gather_latent({count, slots.data(), {cache.data(), dtype, P, width}, out->data()},
                          exec);
      });
    }
  }
}
