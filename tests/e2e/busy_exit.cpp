// The process ends while threads are inside driver calls. The argument names the way in which it
// ends. (Natively, the CUDA runtime may crash in such a process, because it destroys its objects at
// exit.)
#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include <cuda.h>
#include <unistd.h>

namespace {

constexpr size_t kBytes = 1 << 20;

void work(CUcontext context) {
  std::vector<char> host(kBytes, 1);
  CUstream stream;
  CUdeviceptr device;
  void* mapped;
  if (cuCtxSetCurrent(context) != CUDA_SUCCESS || cuMemAlloc(&device, kBytes) != CUDA_SUCCESS ||
      cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS ||
      cuMemHostAlloc(&mapped, kBytes, CU_MEMHOSTALLOC_DEVICEMAP) != CUDA_SUCCESS) {
    return;
  }
  // Errors are ignored.
  while (true) {
    cuMemcpyHtoDAsync(device, host.data(), kBytes, stream);
    cuMemsetD8Async(device, 1, kBytes, stream);
    cuMemcpyDtoHAsync(mapped, device, kBytes, stream);
    cuMemcpyDtoHAsync(host.data(), device, kBytes, stream);
    cuStreamSynchronize(stream);
    static_cast<char*>(mapped)[0] = 2;
  }
}

}  // namespace

int main(int, char** arguments) {
  const std::string how = arguments[1];
  CUcontext context;
  if (cuInit(0) != CUDA_SUCCESS || cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS) return 3;
  for (int i = 0; i < 8; ++i) std::thread(work, context).detach();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  if (how == "exit") std::exit(5);
  if (how == "_exit") _exit(6);
  if (how == "quick_exit") std::quick_exit(7);
  if (how == "thread") std::thread([] { std::exit(8); }).join();
  return 4;
}
