// Uses the resources of a session up to their limits.
//
//   memory_quota fill        allocates each kind of memory until there is no more, frees it, and
//                            prints how many MiB there were
//   memory_quota priorities  makes a stream of the highest priority, and of an even higher one, and
//                            prints how far they are above the lowest
//   memory_quota hold MIB    allocates, prints "holding" or the error, and keeps the memory; then
//                            the same for each line of its input
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#include <cuda.h>

namespace {

constexpr size_t kMiB = 1u << 20;
constexpr size_t kPiece = 8 * kMiB;

void check(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  std::fprintf(stderr, "%s: %d\n", what, result);
  std::exit(1);
}
#define CHECK(call) check(call, #call)

struct Kind {
  const char* name;
  std::function<CUresult(uint64_t* object)> make;
  std::function<CUresult(uint64_t object)> end;
};

CUmemAllocationProp on_device() {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  return properties;
}

std::vector<Kind> kinds() {
  return {
      {"plain", [](uint64_t* at) { return cuMemAlloc((CUdeviceptr*)at, kPiece); },
       [](uint64_t at) { return cuMemFree(at); }},
      {"managed",
       [](uint64_t* at) {
         return cuMemAllocManaged((CUdeviceptr*)at, kPiece, CU_MEM_ATTACH_GLOBAL);
       },
       [](uint64_t at) { return cuMemFree(at); }},
      {"pooled", [](uint64_t* at) { return cuMemAllocAsync((CUdeviceptr*)at, kPiece, nullptr); },
       [](uint64_t at) { return cuMemFreeAsync(at, nullptr); }},
      {"mapped",
       [](uint64_t* at) {
         const CUmemAllocationProp properties = on_device();
         return cuMemCreate((CUmemGenericAllocationHandle*)at, kPiece, &properties, 0);
       },
       [](uint64_t at) { return cuMemRelease(at); }},
      {"array",
       [](uint64_t* at) {
         CUDA_ARRAY_DESCRIPTOR array{1024, kPiece / 4096, CU_AD_FORMAT_FLOAT, 1};
         return cuArrayCreate((CUarray*)at, &array);
       },
       [](uint64_t at) { return cuArrayDestroy((CUarray)at); }},
      {"host", [](uint64_t* at) { return cuMemHostAlloc((void**)at, kPiece, 0); },
       [](uint64_t at) { return cuMemFreeHost((void*)at); }},
  };
}

void fill(CUdevice device) {
  size_t size = 0, free = 0, total = 0;
  CHECK(cuDeviceTotalMem(&size, device));
  CHECK(cuMemGetInfo(&free, &total));
  std::printf("device %zu total %zu free %zu\n", size / kMiB, total / kMiB, free / kMiB);
  for (const Kind& kind : kinds()) {
    std::vector<uint64_t> objects;
    CUresult result = CUDA_SUCCESS;
    for (;;) {
      uint64_t object = 0;
      result = kind.make(&object);
      if (result != CUDA_SUCCESS) break;
      objects.push_back(object);
      if (objects.size() == 64) break;
    }
    CHECK(cuMemGetInfo(&free, &total));
    std::printf("%s %zu then %s, free %zu\n", kind.name, objects.size() * kPiece / kMiB,
                result == CUDA_SUCCESS               ? "no limit"
                : result == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory"
                                                     : "another error",
                free / kMiB);
    for (const uint64_t object : objects) CHECK(kind.end(object));
    CHECK(cuCtxSynchronize());
  }
}

void show_priorities() {
  int least = 0, greatest = 0;
  CHECK(cuCtxGetStreamPriorityRange(&least, &greatest));
  for (const int wanted : {greatest, greatest - 1}) {
    CUstream stream = nullptr;
    int priority = 0;
    CHECK(cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, wanted));
    CHECK(cuStreamGetPriority(stream, &priority));
    std::printf("%d\n", least - priority);
  }
}

void hold(size_t bytes) {
  for (int c = '\n'; c != EOF; c = std::getchar()) {
    CUdeviceptr memory = 0;
    const CUresult result = cuMemAlloc(&memory, bytes);
    std::printf("%s\n", result == CUDA_SUCCESS               ? "holding"
                        : result == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory"
                                                             : "another error");
    std::fflush(stdout);
  }
}

}  // namespace

int main(int count, char** arguments) {
  CUdevice device = 0;
  CUcontext context = nullptr;
  CHECK(cuInit(0));
  CHECK(cuDeviceGet(&device, 0));
  CHECK(cuDevicePrimaryCtxRetain(&context, device));
  CHECK(cuCtxSetCurrent(context));
  if (count == 2 && !std::strcmp(arguments[1], "fill")) {
    fill(device);
  } else if (count == 2 && !std::strcmp(arguments[1], "priorities")) {
    show_priorities();
  } else if (count == 3 && !std::strcmp(arguments[1], "hold")) {
    hold(static_cast<size_t>(std::atoi(arguments[2])) * kMiB);
  } else {
    return 2;
  }
}
