// Loads a library with CUDA kernels, calls it and unloads it, repeatedly. Each time, the library's
// module is loaded again on the device. A context of the program itself outlives the library.
//
//   reloaded LIBRARY
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include <cuda.h>
#include <dlfcn.h>

namespace {

void check(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "%s does not hold\n", what);
  std::exit(1);
}

bool is_mapped(const char* library) {
  std::FILE* maps = std::fopen("/proc/self/maps", "r");
  char line[4096];
  bool found = false;
  while (std::fgets(line, sizeof line, maps)) found |= std::strstr(line, library) != nullptr;
  std::fclose(maps);
  return found;
}

using Climb = int (*)(int* value, int* called);

void load_and_unload(const char* path, int* value) {
  const int before = *value;
  int called = 0;
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  check(library, "dlopen");
  const auto climb = reinterpret_cast<Climb>(dlsym(library, "climb_once"));
  check(climb(value, &called) == 0, "the first call");
  check(called == 1, "a variable is new with each load");
  std::thread([&] { check(climb(value, &called) == 0, "a call of another thread"); }).join();
  check(called == 2 && *value == before + 6, "the sum");
  check(dlclose(library) == 0, "dlclose");
  check(!is_mapped(path), "the library is gone");
}

}  // namespace

int main(int, char** arguments) {
  const char* path = arguments[1];
  int value = 0;
  // The library's runtime is the only user of CUDA, so the primary context is destroyed with it.
  for (int round = 0; round < 3; ++round) load_and_unload(path, &value);
  // If the program also uses the context, the memory of the program stays.
  CUcontext context = nullptr;
  CUdeviceptr memory = 0;
  unsigned read = 0;
  check(cuInit(0) == CUDA_SUCCESS, "cuInit");
  check(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS, "cuDevicePrimaryCtxRetain");
  check(cuCtxSetCurrent(context) == CUDA_SUCCESS, "cuCtxSetCurrent");
  check(cuMemAlloc(&memory, 4096) == CUDA_SUCCESS, "cuMemAlloc");
  check(cuMemsetD32(memory, 7, 1024) == CUDA_SUCCESS, "cuMemsetD32");
  for (int round = 0; round < 3; ++round) {
    load_and_unload(path, &value);
    check(cuMemcpyDtoH(&read, memory + 4092, 4) == CUDA_SUCCESS && read == 7, "the memory");
  }
  check(cuMemFree(memory) == CUDA_SUCCESS, "cuMemFree");
}
