// Page-locked memory of a program that loses its server. Prints "running" when the memory is
// allocated, and after the loss the result of each call. With two servers, it then uses the second
// server's GPU, which must work as before.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <cuda.h>

namespace {

constexpr size_t kBytes = 1 << 16;

void check(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "%s does not hold\n", what);
  std::exit(1);
}

void say(CUresult result) {
  const char* name = "?";
  cuGetErrorName(result, &name);
  std::puts(name);
}

bool works(CUresult result) { return result == CUDA_SUCCESS; }

// Copies to the other GPU from page-locked memory of the time before the loss, and back to memory
// that is allocated after the loss.
void use_the_other(CUcontext other, void* before, void* registered) {
  CUdeviceptr memory, managed;
  void* after;
  check(works(cuCtxSetCurrent(other)) && works(cuMemAlloc(&memory, kBytes)), "the other GPU");
  check(works(cuMemHostAlloc(&after, kBytes, CU_MEMHOSTALLOC_DEVICEMAP)), "its allocation");
  check(works(cuMemAllocManaged(&managed, kBytes, CU_MEM_ATTACH_GLOBAL)), "its managed memory");
  check(works(cuMemHostRegister(registered, kBytes, CU_MEMHOSTREGISTER_DEVICEMAP)),
        "its registration");
  std::memset(before, 3, kBytes);
  check(works(cuMemcpyHtoD(memory, before, kBytes)) && works(cuMemcpyDtoH(after, memory, kBytes)) &&
            works(cuMemcpyDtoH(registered, memory, kBytes)),
        "its copies");
  check(std::memcmp(before, after, kBytes) == 0 && std::memcmp(before, registered, kBytes) == 0,
        "what was copied");
  check(works(cuMemHostUnregister(registered)) && works(cuMemFreeHost(after)) &&
            works(cuMemFreeHost(before)) && works(cuMemFree(managed)) && works(cuMemFree(memory)),
        "giving it back");
  std::puts("the other GPU works");
}

}  // namespace

int main() {
  CUcontext context, second = nullptr;
  void* kept;
  int devices = 0;
  void *allocated, *more;
  CUdeviceptr memory;
  auto* registered = static_cast<char*>(std::aligned_alloc(4096, kBytes));
  auto* other = static_cast<char*>(std::aligned_alloc(4096, kBytes));
  registered[kBytes - 1] = 7;
  check(cuInit(0) == CUDA_SUCCESS && cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS &&
            cuCtxSetCurrent(context) == CUDA_SUCCESS,
        "a context");
  check(cuMemHostRegister(registered, kBytes, 0) == CUDA_SUCCESS, "the registration");
  check(cuMemHostAlloc(&allocated, kBytes, 0) == CUDA_SUCCESS, "the allocation");
  check(cuMemHostAlloc(&kept, kBytes, 0) == CUDA_SUCCESS, "the other allocation");
  check(cuDeviceGetCount(&devices) == CUDA_SUCCESS, "a number of devices");
  check(devices == 1 || cuDevicePrimaryCtxRetain(&second, 1) == CUDA_SUCCESS, "a second context");
  std::puts("running");
  std::fflush(stdout);
  CUresult result;
  while ((result = cuMemAlloc(&memory, kBytes)) == CUDA_SUCCESS) (void)cuMemFree(memory);
  say(result);

  say(cuMemHostRegister(other, kBytes, 0));
  say(cuMemHostRegister(other, kBytes, CU_MEMHOSTREGISTER_DEVICEMAP));
  say(cuMemHostAlloc(&more, kBytes, 0));
  say(cuMemHostUnregister(registered));
  say(cuMemFreeHost(allocated));
  check(registered[kBytes - 1] == 7, "what was written");
  if (second) use_the_other(second, kept, registered);
  std::free(registered);
  std::free(other);
}
