// Page-locked memory of a program whose server is lost: says what each call returns from then on.
// Prints "running" once it has such memory.
#include <cstdio>
#include <cstdlib>

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

}  // namespace

int main() {
  CUcontext context;
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
  std::free(registered);
  std::free(other);
}
