// FP8 latent rows and index keys: their layout, their rounding, and that kernels read them as the
// fp32 numbers that they mean.
#include "kernels/cpu/e4m3.h"
#include "tests/kernels/common.h"

using namespace weft;
using namespace weft::test;

namespace {

constexpr DType kFp8 = DType::kF8E4M3;

// One row of the layout that cache.h states, read by hand.
std::vector<float> Meaning(const char* row, int64_t latent, int64_t rope) {
  std::vector<float> values;
  for (int64_t i = 0; i < latent; ++i) {
    float scale;
    std::memcpy(&scale, row + latent + i / 128 * 4, 4);
    values.push_back(isa_plain::FromE4m3(static_cast<uint8_t>(row[i])) * scale);
  }
  for (int64_t i = 0; i < rope; ++i) {
    uint16_t bits;
    std::memcpy(&bits, row + latent + latent / 128 * 4 + 2 * i, 2);
    values.push_back(ref::FromBf16(bits));
  }
  return values;
}

// Runs on every instruction set; all must leave the same bytes.
template <typename Write>
std::vector<char> Everywhere(size_t bytes, Write write) {
  ThreadPool pool(3);
  std::vector<char> first;
  for (const Ops* ops : AllOps()) {
    for (const Exec& exec : {Exec{}, pool.exec()}) {
      std::vector<char> got(bytes, 0x55);
      write(*ops, exec, &got);
      if (first.empty()) first = got;
      INFO(ops->name);
      CHECK(got == first);
    }
  }
  return first;
}

std::vector<char> Latents(const std::vector<float>& x, int32_t latent, int32_t rope, int64_t rows) {
  const int64_t bytes = LatentCache::RowBytes(kFp8, latent, rope);
  std::vector<int64_t> slots;
  for (int64_t r = 0; r < rows; ++r) slots.push_back(rows - 1 - r);
  return Everywhere(static_cast<size_t>(rows * bytes),
                    [&](const Ops& ops, const Exec& exec, std::vector<char>* cache) {
                      ops.write_latent({rows,
                                        x.data(),
                                        latent + rope,
                                        slots.data(),
                                        {cache->data(), kFp8, 8, latent + rope, rope}},
                                       exec);
                    });
}

}  // namespace

TEST_CASE("an FP8 latent row takes 656 bytes, an index key 132") {
  CHECK(LatentCache::RowBytes(kFp8, 512, 64) == 656);
  CHECK(LatentCache{nullptr, kFp8, 64, 576, 64}.RowBytes() == 656);
  CHECK(LatentCache{nullptr, DType::kBF16, 64, 576}.RowBytes() == 1152);
  CHECK(IndexCache{nullptr, kFp8, 64, 128}.PageBytes() == 64 * 132);
  CHECK(IndexCache{nullptr, DType::kF32, 64, 128}.PageBytes() == 64 * 512);
}

TEST_CASE("FP8 latents are within half a step, and the rope part is bf16") {
  Random random(1);
  const int32_t latent = 256, rope = 32, width = latent + rope;
  const int64_t rows = 16;
  std::vector<float> x = random.Floats(rows * width);
  for (int i = 0; i < 128; ++i) x[static_cast<size_t>(i)] *= 1000;  // blocks differ
  for (int i = 128; i < 256; ++i) x[static_cast<size_t>(i)] = 0;    // the least scale
  const std::vector<char> cache = Latents(x, latent, rope, rows);
  const int64_t bytes = LatentCache::RowBytes(kFp8, latent, rope);
  for (int64_t r = 0; r < rows; ++r) {
    const auto got = Meaning(cache.data() + (rows - 1 - r) * bytes, latent, rope);
    const float* want = x.data() + r * width;
    for (int64_t begin = 0; begin < latent; begin += 128) {
      float greatest = 1e-4f;
      for (int64_t i = begin; i < begin + 128; ++i)
        greatest = std::max(greatest, std::abs(want[i]));
      float scale;
      std::memcpy(&scale, cache.data() + (rows - 1 - r) * bytes + latent + begin / 128 * 4, 4);
      CHECK(scale == greatest / 448.0f);
      for (int64_t i = begin; i < begin + 128; ++i) {
        const float step = std::max(std::abs(want[i]) / 16, scale * 0x1p-10f);
        REQUIRE(std::abs(got[static_cast<size_t>(i)] - want[i]) <= step * 1.0001f);
      }
    }
    for (int64_t i = latent; i < width; ++i) {
      REQUIRE(got[static_cast<size_t>(i)] == ref::FromBf16(ref::ToBf16(want[i])));
    }
  }
}

TEST_CASE("sparse MLA over FP8 rows has the bits of the rows in fp32") {
  Random random(2);
  for (const int32_t latent : {128, 512}) {
    for (const int32_t heads : {1, 3, 16, 33}) {
      const int32_t rope = 64, width = latent + rope;
      const int64_t kv_rows = 90, rows = 3, stride = 80;
      std::vector<float> x = random.Floats(kv_rows * width);
      x[static_cast<size_t>(5 * width + 3)] = kNan;  // a NaN stays one
      const std::vector<char> fp8 = Latents(x, latent, rope, kv_rows);
      std::vector<float> wide;
      for (int64_t r = 0; r < kv_rows; ++r) {
        const auto row =
            Meaning(fp8.data() + r * LatentCache::RowBytes(kFp8, latent, rope), latent, rope);
        wide.insert(wide.end(), row.begin(), row.end());
      }
      const std::vector<float> q = random.Floats(rows * heads * width);
      std::vector<int32_t> lists, counts = {80, 37, 9};
      for (int64_t i = 0; i < rows * stride; ++i) {
        lists.push_back(static_cast<int32_t>(random.Int(-3, kv_rows)));
        if (lists.back() < 0) lists.back() = -1;
        if (i / stride == 2 && lists.back() == kv_rows - 1 - 5) lists.back() = 0;
      }
      const auto run = [&](const void* kv, DType dtype) {
        return RunEverywhere(static_cast<size_t>(latent), [&](const Ops& ops, const Exec& exec) {
          const auto pairs = static_cast<size_t>(rows * heads);
          std::vector<float> max(pairs), sum(pairs), o(pairs * static_cast<size_t>(latent));
          const SparseMlaParams p{rows,          heads,      latent,     rope,         0.1f,
                                  q.data(),      kv,         dtype,      lists.data(), stride,
                                  counts.data(), max.data(), sum.data(), o.data()};
          InitSparseMla(p);
          ops.sparse_mla(p, exec);
          FinishSparseMla(p, nullptr);
          return o;
        });
      };
      CAPTURE(latent, heads);
      const std::vector<float> got = run(fp8.data(), kFp8);
      CHECK(BitsDiffer(got, run(wide.data(), DType::kF32), static_cast<size_t>(latent)) == "");
      CHECK_FALSE(std::isnan(got.back()));
    }
  }
}

TEST_CASE("index scores of FP8 keys have the bits of the keys in fp32") {
  Random random(3);
  const int32_t dim = 128, P = 32, heads = 5;
  const int64_t keys = 3 * P, rows = 4;
  const std::vector<float> x = random.Floats(keys * dim);
  std::vector<int64_t> slots;
  for (int64_t i = 0; i < keys; ++i) slots.push_back((i * 7) % keys);
  const IndexCache shape{nullptr, kFp8, P, dim};
  std::vector<char> fp8 = Everywhere(
      static_cast<size_t>(3 * shape.PageBytes()),
      [&](const Ops& ops, const Exec& exec, std::vector<char>* cache) {
        ops.write_index({keys, x.data(), dim, slots.data(), {cache->data(), kFp8, P, dim}}, exec);
      });
  std::vector<float> wide(static_cast<size_t>(keys * dim));
  for (int64_t s = 0; s < keys; ++s) {
    const char* page = fp8.data() + s / P * shape.PageBytes();
    float scale;
    std::memcpy(&scale, page + dim * P + s % P * 4, 4);
    for (int64_t d = 0; d < dim; ++d) {
      wide[static_cast<size_t>(s / P * dim * P + d * P + s % P)] =
          isa_plain::FromE4m3(static_cast<uint8_t>(page[d * P + s % P])) * scale;
    }
  }
  const std::vector<float> q = random.Floats(rows * heads * dim), w = random.Floats(rows * heads);
  const std::vector<int32_t> table = {2, 0, 1};
  const std::vector<int64_t> visible = {keys, 50, 1, 33};
  const auto run = [&](void* data, DType dtype) {
    return RunEverywhere(static_cast<size_t>(keys), [&](const Ops& ops, const Exec& exec) {
      std::vector<float> scores(static_cast<size_t>(rows * keys), -7);
      ops.index_scores({rows,
                        heads,
                        q.data(),
                        w.data(),
                        {data, dtype, P, dim},
                        table.data(),
                        visible.data(),
                        scores.data(),
                        keys},
                       exec);
      return scores;
    });
  };
  CHECK(BitsDiffer(run(fp8.data(), kFp8), run(wide.data(), DType::kF32),
                   static_cast<size_t>(keys)) == "");
}

TEST_CASE("the Hadamard rotation is its own inverse and keeps dot products") {
  Random random(4);
  for (const int32_t dim : {16, 128, 512}) {
    std::vector<float> both = random.Floats(2 * dim);
    const auto rotate = [&](const std::vector<float>& x) {
      return RunEverywhere(static_cast<size_t>(dim), [&](const Ops& ops, const Exec& exec) {
        std::vector<float> y = x;
        ops.hadamard({static_cast<int64_t>(x.size()) / dim, dim, y.data()}, exec);
        return y;
      });
    };
    const std::vector<float> rotated = rotate(both);
    CHECK(Differs(rotate(rotated), both, static_cast<size_t>(dim), {1e-5, 1e-5, 1e-11}) == "");
    double was = 0, is = 0, moved = 0;
    for (size_t i = 0; i < static_cast<size_t>(dim); ++i) {
      was += double{both[i]} * both[i + static_cast<size_t>(dim)];
      is += double{rotated[i]} * rotated[i + static_cast<size_t>(dim)];
      moved += std::abs(double{rotated[i]} - both[i]);
    }
    CHECK(is == Approx(was).epsilon(1e-5).margin(1e-4));
    CHECK(moved > 1);
    std::vector<float> spike(static_cast<size_t>(dim));
    spike[0] = 2;  // an outlier is spread evenly
    const std::vector<float> even = rotate(spike);
    for (const float v : even) CHECK(v == Approx(2 / std::sqrt(dim)));
  }
}
