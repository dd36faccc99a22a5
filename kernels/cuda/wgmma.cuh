// Tensor core products of one warpgroup (wgmma): operands in shared memory, the left one in
// registers where it is said, sums in registers.
//
// Operands lie in blocks of [rows][64 bf16], 128 bytes a row, 16-byte chunk c of row r at chunk
// c ^ (r % 8) (the 128-byte swizzle); blocks start at multiples of 1024 bytes. Written by ordinary
// stores or cp.async, they need Fence() in each writing thread before the barrier.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace weft::cuda::wgmma {

// Descriptor of an operand at shared address `at`. Rows outermost (K-major): `stride` is from 8
// rows to the next 8, `lead` unused. Columns outermost (MN-major, the block read as its transpose):
// `stride` from 8 rows to the next 8 along k, `lead` from one block of 64 columns to the next.
__device__ inline uint64_t Operand(uint32_t at, uint32_t stride, uint32_t lead) {
  return static_cast<uint64_t>((at & 0x3FFFFu) >> 4) | static_cast<uint64_t>(lead >> 4) << 16 |
         static_cast<uint64_t>(stride >> 4) << 32 | uint64_t{1} << 62;
}

__device__ inline void Fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ inline void Begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void Commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
__device__ inline void Wait() { asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory"); }

#define WEFT_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define WEFT_D16(i) WEFT_D4(i), WEFT_D4(i + 4), WEFT_D4(i + 8), WEFT_D4(i + 12)

// d[64, 32] = or += a[64, 16] b[32, 16]^T. Lane (g, t) of warp w holds rows 16 w + g and + 8; d[4 j
// + i] is column 8 j + 2 t + i % 2 of row g + 8 (i / 2).
__device__ inline void Mma32(float (&d)[16], uint64_t a, uint64_t b, bool add) {
  asm volatile(
      "{.reg .pred p; setp.ne.b32 p, %18, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
      "%16, %17, p, 1, 1, 0, 0;}"
      : WEFT_D16(0)
      : "l"(a), "l"(b), "r"(static_cast<int>(add)));
}

// d[64, 256] += a[64, 16] b[16, 256], b columns outermost.
__device__ inline void Mma256(float (&d)[128], uint64_t a, uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
      "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
      "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, "
      "%127}, "
      "%128, %129, 1, 1, 1, 0, 1;"
      : WEFT_D16(0), WEFT_D16(16), WEFT_D16(32), WEFT_D16(48), WEFT_D16(64), WEFT_D16(80),
        WEFT_D16(96), WEFT_D16(112)
      : "l"(a), "l"(b));
}

// d[64, kColumns] = or += a[64, 16] b[kColumns, 16]^T with a in registers; fp16 or bf16. Lane (g,
// t) of warp w gives of rows 16 w + g and + 8 columns 2 t, 2 t + 1, then of both 8 + 2 t, 9 + 2 t.
template <int kColumns, bool kHalf>
__device__ void MmaRegisters(float (&d)[kColumns / 2], const uint32_t (&a)[4], uint64_t b,
                             bool add) {
#define WEFT_AB "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add))
#define WEFT_MMA16(type)                                                         \
  asm volatile(                                                                  \
      "{.reg .pred p; setp.ne.b32 p, %13, 0;\n"                                  \
      "wgmma.mma_async.sync.aligned.m64n16k16.f32." type "." type                \
      " {%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9, %10, %11}, %12, p, 1, 1, 0;}" \
      : WEFT_D4(0), WEFT_D4(4)                                                   \
      : WEFT_AB)
#define WEFT_MMA32(type)                                                          \
  asm volatile(                                                                   \
      "{.reg .pred p; setp.ne.b32 p, %21, 0;\n"                                   \
      "wgmma.mma_async.sync.aligned.m64n32k16.f32." type "." type                 \
      " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, " \
      "{%16, %17, %18, %19}, %20, p, 1, 1, 0;}"                                   \
      : WEFT_D4(0), WEFT_D4(4), WEFT_D4(8), WEFT_D4(12)                           \
      : WEFT_AB)
#define WEFT_MMA64(type)                                                                        \
  asm volatile(                                                                                 \
      "{.reg .pred p; setp.ne.b32 p, %37, 0;\n"                                                 \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type                               \
      " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                \
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, "             \
      "%31}, {%32, %33, %34, %35}, %36, p, 1, 1, 0;}"                                           \
      : WEFT_D4(0), WEFT_D4(4), WEFT_D4(8), WEFT_D4(12), WEFT_D4(16), WEFT_D4(20), WEFT_D4(24), \
        WEFT_D4(28)                                                                             \
      : WEFT_AB)
#define WEFT_EITHER(mma) \
  if constexpr (kHalf) { \
    mma("f16");          \
  } else {               \
    mma("bf16");         \
  }
  static_assert(kColumns == 16 || kColumns == 32 || kColumns == 64);
  if constexpr (kColumns == 16) {
    WEFT_EITHER(WEFT_MMA16)
  } else if constexpr (kColumns == 32) {
    WEFT_EITHER(WEFT_MMA32)
  } else {
    WEFT_EITHER(WEFT_MMA64)
  }
#undef WEFT_EITHER
#undef WEFT_MMA16
#undef WEFT_MMA32
#undef WEFT_MMA64
#undef WEFT_AB
}

#undef WEFT_D4
#undef WEFT_D16

}  // namespace weft::cuda::wgmma
