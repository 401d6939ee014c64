// Allocates device memory and writes to it, 16 MiB at a time, until a call fails or it has as many
// MiB as the argument says. Prints "has all" or the error.
#include <cstdio>
#include <cstdlib>

#include <cuda.h>

namespace {

constexpr size_t kStep = 16u << 20;

CUresult take(size_t bytes) {
  CUdevice device = 0;
  CUcontext context = nullptr;
  CUresult result = cuInit(0);
  if (result == CUDA_SUCCESS) result = cuDeviceGet(&device, 0);
  if (result == CUDA_SUCCESS) result = cuDevicePrimaryCtxRetain(&context, device);
  if (result == CUDA_SUCCESS) result = cuCtxSetCurrent(context);
  for (size_t have = 0; result == CUDA_SUCCESS && have < bytes; have += kStep) {
    CUdeviceptr memory = 0;
    result = cuMemAlloc(&memory, kStep);
    if (result == CUDA_SUCCESS) result = cuMemsetD8(memory, 1, kStep);
    if (result == CUDA_SUCCESS) result = cuCtxSynchronize();
  }
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  const size_t mebibytes = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 0;
  const CUresult result = take(mebibytes << 20);
  const char* name = "has all";
  if (result != CUDA_SUCCESS) cuGetErrorName(result, &name);
  std::puts(name);
  return result == CUDA_SUCCESS ? 0 : 1;
}
