// A program that has run out of memory gets an error from CUDA and is otherwise unaffected. Each
// call is made once while every allocation of the calling thread fails, then again with memory.
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include <cuda.h>

extern "C" void* __libc_malloc(size_t bytes);

namespace {

thread_local bool refusing = false;

void nothing(void*) {}

}  // namespace

extern "C" void* malloc(size_t bytes) {
  if (!refusing) return __libc_malloc(bytes);
  errno = ENOMEM;
  return nullptr;
}

int main() {
  CUdevice device;
  CUcontext context;
  CUstream stream;
  CUdeviceptr memory;
  if (cuInit(0) != CUDA_SUCCESS || cuDeviceGet(&device, 0) != CUDA_SUCCESS ||
      cuCtxCreate(&context, nullptr, 0, device) != CUDA_SUCCESS ||
      cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS ||
      cuMemAlloc(&memory, 1 << 20) != CUDA_SUCCESS) {
    std::fprintf(stderr, "no device to begin with\n");
    return 1;
  }
  CUdeviceptr more;
  void* pinned;
  CUmodule module;
  std::vector<char> host(1 << 20);
  const char* const image =
      ".version 7.0\n.target sm_75\n.address_size 64\n.visible .entry k() { ret; }\n";
  const std::vector<std::pair<const char*, std::function<CUresult()>>> calls = {
      {"cuMemAlloc", [&] { return cuMemAlloc(&more, 4096); }},
      {"cuMemHostAlloc", [&] { return cuMemHostAlloc(&pinned, 4096, 0); }},
      {"cuLaunchHostFunc", [&] { return cuLaunchHostFunc(stream, nothing, nullptr); }},
      {"cuModuleLoadData", [&] { return cuModuleLoadData(&module, image); }},
      {"cuMemcpyHtoD", [&] { return cuMemcpyHtoD(memory, host.data(), host.size()); }},
      {"cuStreamSynchronize", [&] { return cuStreamSynchronize(stream); }},
  };
  int refused = 0;
  for (const auto& [name, call] : calls) {
    refusing = true;
    const CUresult without = call();
    refusing = false;
    const CUresult with = call();
    std::printf("%s: %d, %d\n", name, without, with);
    refused += without == CUDA_ERROR_OUT_OF_MEMORY;
    if ((without != CUDA_SUCCESS && without != CUDA_ERROR_OUT_OF_MEMORY) || with != CUDA_SUCCESS) {
      return 1;
    }
  }
  if (refused == 0) std::fprintf(stderr, "nothing was refused: what this shows is not shown\n");
  return refused == 0;
}
