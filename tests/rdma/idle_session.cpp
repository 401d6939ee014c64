// A CUDA program with an idle session: it copies, prints "idle" and waits for a line on standard
// input. Then it allocates more page-locked memory, prints the result, and shows that the session
// still works. The rig measures it while it waits, and then makes allocations fail.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

#include <cuda.h>
#include <dlfcn.h>

namespace {

void* driver = nullptr;

template <typename Function>
Function* find(const char* name) {
  auto* function = reinterpret_cast<Function*>(::dlsym(driver, name));
  if (function == nullptr) {
    std::fprintf(stderr, "%s: %s\n", name, ::dlerror());
    std::exit(2);
  }
  return function;
}

void check(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  std::fprintf(stderr, "%s: CUDA error %d\n", what, static_cast<int>(result));
  std::exit(1);
}

}  // namespace

int main() {
  driver = ::dlopen("libcuda.so.1", RTLD_NOW);
  if (driver == nullptr) {
    std::fprintf(stderr, "%s\n", ::dlerror());
    return 2;
  }
  constexpr size_t kBytes = 1u << 20;
  CUcontext context;
  CUdeviceptr memory;
  void* host;
  check(find<CUresult(unsigned)>("cuInit")(0), "cuInit");
  check(find<CUresult(CUcontext*, CUdevice)>("cuDevicePrimaryCtxRetain")(&context, 0), "retain");
  check(find<CUresult(CUcontext)>("cuCtxSetCurrent")(context), "cuCtxSetCurrent");
  check(find<CUresult(CUdeviceptr*, size_t)>("cuMemAlloc_v2")(&memory, kBytes), "cuMemAlloc");
  auto* allocate = find<CUresult(void**, size_t, unsigned)>("cuMemHostAlloc");
  check(allocate(&host, kBytes, 0), "cuMemHostAlloc");
  auto* to_device = find<CUresult(CUdeviceptr, const void*, size_t)>("cuMemcpyHtoD_v2");
  auto* to_host = find<CUresult(void*, CUdeviceptr, size_t)>("cuMemcpyDtoH_v2");
  for (const char* word : {"idle", "good"}) {
    std::memset(host, word[0], kBytes);
    check(to_device(memory, host, kBytes), "copying to the device");
    std::memset(host, 0, kBytes);
    check(to_host(host, memory, kBytes), "copying back");
    for (size_t i = 0; i < kBytes; ++i) {
      if (static_cast<char*>(host)[i] != word[0]) {
        std::fprintf(stderr, "byte %zu is wrong\n", i);
        return 1;
      }
    }
    std::puts(word);
    std::fflush(stdout);
    if (word[0] != 'i') break;
    (void)std::getchar();
    void* more;
    std::printf("allocating: %d\n", static_cast<int>(allocate(&more, kBytes, 0)));
  }
  return 0;
}
