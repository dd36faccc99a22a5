// weft-cuda-check [--small] [part of a name]: every CUDA operation against the plain reference.
// Exit status 77 on a machine without a GPU.
#include <chrono>
#include <cstring>

#include "tests/kernels_cuda/gpu.h"

namespace weft::gpu {
Session& TheSession() {
  static Session session;
  return session;
}
}  // namespace weft::gpu

int main(int argc, char** argv) {
  using namespace weft::gpu;
  Session& session = TheSession();
  const char* part = "";
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--help") == 0) {
      std::puts(
          "weft-cuda-check [--small] [part of a name]: every operation on this machine's GPU\n"
          "against the CPU; --small: sizes for a sanitizer");
      return 0;
    }
    if (std::strcmp(argv[i], "--small") == 0) {
      session.small = true;
    } else if (argv[i][0] == '-') {
      std::fprintf(stderr, "there is no option %s (--help)\n", argv[i]);
      return 2;
    } else {
      part = argv[i];
    }
  }
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("skipped: no CUDA device\n");
    return 77;
  }
  int ran = 0;
  try {
    weft::CudaContext context(0);
    session.context = &context;
    for (const Case& test : session.cases) {
      if (std::strstr(test.name, part) == nullptr) continue;
      ++ran;
      const int failed = session.failures, checks = session.checks;
      const auto start = std::chrono::steady_clock::now();
      test.run();
      WEFT_CUDA_CHECK(cudaDeviceSynchronize());
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
      std::printf("%s  %s (%d checks, %.1f s)\n", session.failures == failed ? "ok  " : "FAIL",
                  test.name, session.checks - checks, took.count());
      std::fflush(stdout);
    }
  } catch (const std::exception& error) {
    std::printf("FAILED with an error: %s\n", error.what());
    return 1;
  }
  if (ran == 0) {
    std::fprintf(stderr, "no case has '%s' in its name\n", part);
    return 2;
  }
  std::printf("%d checks, %d failures\n", session.checks, session.failures);
  return session.failures == 0 ? 0 : 1;
}
