// Page-locked memory uses none of the program's descriptors, whose number is limited. The program
// allocates and registers more pieces of memory than this process and the server may open files.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>

#include <cuda.h>
#include <sys/resource.h>

namespace {

constexpr size_t kPieces = 400;
constexpr size_t kBytes = 64 << 10;

void check(CUresult result, const char* what, size_t at) {
  if (result == CUDA_SUCCESS) return;
  std::fprintf(stderr, "%s %zu: CUDA error %d\n", what, at, static_cast<int>(result));
  std::exit(1);
}

long descriptors() {
  const std::filesystem::directory_iterator open("/proc/self/fd");
  return std::distance(begin(open), end(open));
}

// The device writes to `memory`.
void use(CUdeviceptr from, char* memory, size_t bytes, const char* what, size_t at) {
  check(cuMemsetD8(from, static_cast<unsigned char>(at), bytes), what, at);
  check(cuMemcpy(reinterpret_cast<CUdeviceptr>(memory), from, bytes), what, at);
  if (static_cast<unsigned char>(memory[bytes - 1]) == static_cast<unsigned char>(at)) return;
  std::fprintf(stderr, "%s %zu: other bytes than were copied\n", what, at);
  std::exit(1);
}

}  // namespace

int main() {
  rlimit limit;
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max = kPieces / 2;
  setrlimit(RLIMIT_NOFILE, &limit);
  CUdevice device;
  CUcontext context;
  CUdeviceptr memory;
  check(cuInit(0), "cuInit", 0);
  check(cuDeviceGet(&device, 0), "cuDeviceGet", 0);
  check(cuCtxCreate(&context, nullptr, 0, device), "cuCtxCreate", 0);
  check(cuMemAlloc(&memory, kBytes), "cuMemAlloc", 0);
  auto* const own = static_cast<char*>(std::aligned_alloc(kBytes, kPieces * kBytes));
  const long before = descriptors();
  for (size_t i = 0; i < kPieces; ++i) {
    void* allocated;
    check(cuMemHostAlloc(&allocated, kBytes, 0), "cuMemHostAlloc", i);
    use(memory, static_cast<char*>(allocated), kBytes, "memory allocated", i);
    // Only half of each piece, so that no two registered regions touch.
    check(cuMemHostRegister(own + i * kBytes, kBytes / 2, 0), "cuMemHostRegister", i);
    use(memory, own + i * kBytes, kBytes / 2, "memory registered", i);
    CUdeviceptr seen;
    check(cuMemHostGetDevicePointer(&seen, own + i * kBytes, 0), "cuMemHostGetDevicePointer", i);
  }
  const long after = descriptors();
  std::printf("%ld descriptors before, %ld after\n", before, after);
  if (after > before + 10) return 1;
  for (size_t i = 0; i < kPieces; ++i) {
    check(cuMemHostUnregister(own + i * kBytes), "cuMemHostUnregister", i);
    if (static_cast<unsigned char>(own[i * kBytes]) != static_cast<unsigned char>(i)) return 1;
  }
  return 0;
}
