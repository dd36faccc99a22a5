#include "kernels/ops/merge_mla.h"

#include "kernels/ops/elementwise.h"
#include "tests/kernels_cuda/gpu.h"

using namespace weft;
using namespace weft::test;
using namespace weft::gpu;

GPU_TEST("merge_mla") {
  Random random(11);
  for (int32_t parts : {1, 2, 5}) {
    for (int32_t latent : {16, 512}) {
      for (int64_t rows : {0, 1, 7, 200}) {
        const int64_t width = latent + 2;
        std::vector<float> in = random.Floats(parts * rows * width, 2);
        for (int64_t i = 0; i < parts * rows; ++i) {
          float* state = in.data() + i * width + latent;
          state[1] = 1.0f + state[1] * state[1];  // a sum of exponentials
          // Every third list of a part is empty; in row 0 all are.
          if (i % 3 == 0 || i % rows == 0) {
            std::fill_n(in.data() + i * width, latent, 0.0f);
            state[0] = -kInf;
            state[1] = 0;
          }
        }
        const Device<float> device_in(in);
        std::vector<float> want(static_cast<size_t>(rows * latent), 7.0f);
        Device<float> out(want);
        ref::MergeMla({rows, parts, latent, in.data(), want.data()});
        CudaOps()->merge_mla({rows, parts, latent, device_in.data(), out.data()}, Context().exec());
        Check(Differs(out.Host(), want, static_cast<size_t>(latent)),
              "parts " + std::to_string(parts) + " rows " + std::to_string(rows));
      }
    }
  }
}

GPU_TEST("hadamard gives the bits of the CPU backend") {
  Random random(12);
  for (int32_t dim : {1, 2, 64, 128, 512}) {
    for (int64_t rows : {0, 1, 33}) {
      std::vector<float> x = random.Floats(rows * dim, 3);
      Device<float> device(x);
      CpuOps(DetectIsa()).hadamard({rows, dim, x.data()}, Exec{});
      CudaOps()->hadamard({rows, dim, device.data()}, Context().exec());
      Check(BitsDiffer(device.Host(), x, static_cast<size_t>(dim)), "dim " + std::to_string(dim));
    }
  }
}
