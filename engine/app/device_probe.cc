#include "engine/app/device_probe.h"

#include <unistd.h>

#if WEFT_CUDA
#include <cuda_runtime_api.h>

#include <cstdlib>
#endif

namespace weft {
namespace {

#if WEFT_CUDA

std::string Version(int number) {
  return std::to_string(number / 1000) + "." + std::to_string(number % 1000 / 10);
}

std::string Words(cudaError_t error) {
  return std::string(cudaGetErrorName(error)) + ", " + cudaGetErrorString(error);
}

std::string DriverProblem(cudaError_t error) {
  int driver = 0, runtime = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  if (driver == 0) return "no NVIDIA driver is installed on this host";
  if (driver < runtime && error == cudaErrorInsufficientDriver) {
    return "the NVIDIA driver is too old: it has CUDA " + Version(driver) +
           ", this build needs CUDA " + Version(runtime);
  }
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  const std::string shown =
      visible == nullptr ? "" : std::string(" (CUDA_VISIBLE_DEVICES is '") + visible + "')";
  if (error == cudaErrorNoDevice || error == cudaSuccess) return "the host shows no GPU" + shown;
  return "the GPUs cannot be asked for: " + Words(error) + shown;
}

// Fills in everything but the ordinal.
void Describe(DeviceFacts* facts) {
  cudaDeviceProp properties;
  cudaError_t error = cudaGetDeviceProperties(&properties, facts->device);
  const std::string gpu = "GPU " + std::to_string(facts->device);
  if (error != cudaSuccess) {
    facts->problem = gpu + " cannot be asked for: " + Words(error);
    return;
  }
  facts->name = properties.name;
  for (const char byte : properties.uuid.bytes) {
    constexpr char kHex[] = "0123456789abcdef";
    facts->uuid += kHex[static_cast<unsigned char>(byte) >> 4];
    facts->uuid += kHex[byte & 15];
  }
  if (properties.major != 9 || properties.minor != 0) {
    facts->problem = gpu + " (" + facts->name + ") has compute capability " +
                     std::to_string(properties.major) + "." + std::to_string(properties.minor) +
                     ", and the kernels are built for 9.0 (Hopper)";
    return;
  }
  size_t free_bytes = 0, total = 0;
  error = cudaSetDevice(facts->device);
  if (error == cudaSuccess) error = cudaMemGetInfo(&free_bytes, &total);
  if (error != cudaSuccess) {
    facts->problem = gpu + " (" + facts->name +
                     ") cannot be used, perhaps another process has it alone: " + Words(error);
    return;
  }
  facts->free_bytes = static_cast<int64_t>(free_bytes);
  facts->total_bytes = static_cast<int64_t>(total);
}

#endif

}  // namespace

#if WEFT_CUDA
DeviceFacts ProbeDevice(const std::vector<int32_t>& devices, int local_rank) {
  DeviceFacts facts;
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || count == 0) {
    facts.problem = DriverProblem(error);
    return facts;
  }
  const int wanted = devices.empty() ? local_rank % count
                                     : devices[static_cast<size_t>(local_rank) % devices.size()];
  if (wanted >= count) {
    facts.problem = "--device asks for GPU " + std::to_string(wanted) + ", the host shows " +
                    std::to_string(count);
    return facts;
  }
  facts.device = wanted;
  Describe(&facts);
  return facts;
}
#else
DeviceFacts ProbeDevice(const std::vector<int32_t>&, int) {
  DeviceFacts facts;
  facts.problem = "this build has no CUDA backend (no nvcc was found when it was configured)";
  return facts;
}
#endif

std::string HostName() {
  char name[256] = "";
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "?";
}

}  // namespace weft
