// Queries about contexts, functions, memory, streams and events, and how their results change; a
// child of fork(), threads that end, and the end of the process with work under way.
#include <thread>

#include <cuda.h>
#include <sys/wait.h>
#include <unistd.h>

#include "free_memory.h"
#include "program.h"

__global__ void work(int* values, int rounds) {
  extern __shared__ int shared[];
  shared[threadIdx.x] = threadIdx.x;
  // Launches of several threads run at the same time.
  for (int i = 0; i < rounds; ++i) atomicAdd(&values[threadIdx.x], shared[threadIdx.x]);
}
__device__ int device_counter = 5;
__constant__ float constants[8];

#define SHOW(call) std::printf("%s: %d\n", #call, static_cast<int>(call))

void show_limit(const char* name, cudaLimit limit, size_t wanted) {
  size_t before = 0, after = 0;
  const int get = cudaDeviceGetLimit(&before, limit);
  const int set = cudaDeviceSetLimit(limit, wanted);
  cudaDeviceGetLimit(&after, limit);
  std::printf("%s: %d %d, at least as large %d\n", name, get, set, after >= wanted);
  cudaGetLastError();
}

void show_pointer(const char* name, const void* pointer) {
  cudaPointerAttributes a = {};
  const int result = cudaPointerGetAttributes(&a, pointer);
  std::printf("%s: %d type %d device %d, device pointer %s, host pointer %s\n", name, result,
              a.type, a.type == cudaMemoryTypeUnregistered ? -1 : a.device,
              a.devicePointer == pointer ? "same"
              : a.devicePointer          ? "other"
                                         : "none",
              a.hostPointer == pointer ? "same"
              : a.hostPointer          ? "other"
                                       : "none");
  cudaGetLastError();
}

int main() {
  CUDA(cudaFree(nullptr));
  // Primary context.
  unsigned flags = 99;
  int active = 99;
  SHOW(cuDevicePrimaryCtxGetState(0, &flags, &active));
  std::printf("flags %u active %d\n", flags, active);
  CUcontext context, again;
  SHOW(cuDevicePrimaryCtxRetain(&context, 0));
  SHOW(cuDevicePrimaryCtxRetain(&again, 0));
  CHECK(context == again);
  SHOW(cuDevicePrimaryCtxRelease(0));
  SHOW(cuDevicePrimaryCtxRelease(0));
  SHOW(cuDevicePrimaryCtxSetFlags(0, CU_CTX_SCHED_BLOCKING_SYNC));
  SHOW(cuDevicePrimaryCtxGetState(0, &flags, &active));
  std::printf("flags %u active %d\n", flags, active);
  SHOW(cuDevicePrimaryCtxSetFlags(0, 0x4000));
  unsigned int device_flags = 0;
  SHOW(cudaGetDeviceFlags(&device_flags));
  // A driver may also report cudaDeviceMapHost, which is implied.
  std::printf("flags %u\n", device_flags & cudaDeviceScheduleMask);
  CUcontext mine;
  SHOW(cuCtxCreate(&mine, nullptr, CU_CTX_SCHED_YIELD, 0));
  SHOW(cuCtxGetFlags(&flags));
  std::printf("flags %u\n", flags);
  CUdevice device;
  SHOW(cuCtxGetDevice(&device));
  CUdeviceptr memory = 0;
  SHOW(cuMemAlloc(&memory, 100));
  SHOW(cuCtxDestroy(mine));
  unsigned type = 0;
  SHOW(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, memory));
  SHOW(cuCtxSetCurrent(context));
  SHOW(cuCtxPopCurrent(&again));
  SHOW(cuCtxPopCurrent(&again));
  SHOW(cuCtxPushCurrent(context));
  CUlimit nonsense = static_cast<CUlimit>(77);
  size_t value = 0;
  SHOW(cuCtxGetLimit(&value, nonsense));
  // Limits.
  show_limit("stack", cudaLimitStackSize, 4096);
  show_limit("printf", cudaLimitPrintfFifoSize, 2 << 20);
  show_limit("heap", cudaLimitMallocHeapSize, 16 << 20);
  cudaFuncCache cache = cudaFuncCachePreferNone;
  SHOW(cudaDeviceSetCacheConfig(cudaFuncCachePreferL1));
  SHOW(cudaDeviceGetCacheConfig(&cache));
  std::printf("cache %d\n", cache);
  // Functions.
  cudaFuncAttributes attributes = {};
  SHOW(cudaFuncGetAttributes(&attributes, work));
  std::printf("threads %d, dynamic %d\n", attributes.maxThreadsPerBlock,
              attributes.maxDynamicSharedSizeBytes);
  SHOW(cudaFuncSetAttribute(work, cudaFuncAttributeMaxDynamicSharedMemorySize, 100 << 10));
  SHOW(cudaFuncGetAttributes(&attributes, work));
  std::printf("dynamic %d\n", attributes.maxDynamicSharedSizeBytes);
  SHOW(cudaFuncSetAttribute(work, cudaFuncAttributeMaxDynamicSharedMemorySize, 1 << 30));
  cudaGetLastError();
  SHOW(cudaFuncSetAttribute(work, cudaFuncAttributePreferredSharedMemoryCarveout, 50));
  int blocks = 0;
  SHOW(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, work, 256, 100 << 10));
  std::printf("blocks %d\n", blocks);
  SHOW(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, work, 256, 64 << 10));
  std::printf("blocks %d\n", blocks);
  int grid = 0, block = 0;
  SHOW(cudaOccupancyMaxPotentialBlockSize(&grid, &block, work, 0, 0));
  // The numbers depend on the registers that the driver's compiler uses.
  std::printf("grid %d, block %d\n", grid > 0 && grid % 2 == 0, block > 0 && block % 32 == 0);
  size_t dynamic = 0;
  SHOW(cudaOccupancyAvailableDynamicSMemPerBlock(&dynamic, work, 2, 256));
  std::printf("dynamic %zu\n", dynamic);
  // Symbols.
  void* address = nullptr;
  size_t size = 0;
  SHOW(cudaGetSymbolAddress(&address, device_counter));
  SHOW(cudaGetSymbolSize(&size, constants));
  std::printf("size %zu\n", size);
  int counter = 0;
  SHOW(cudaMemcpyFromSymbol(&counter, device_counter, sizeof counter));
  std::printf("counter %d\n", counter);
  SHOW(cudaMemcpyFromSymbol(&counter, device_counter, sizeof counter, 4));
  cudaGetLastError();
  // Memory.
  std::printf("counted %d\n", free_memory_counts(64 << 20));
  int *plain, *pinned, *mapped, *managed, *combined;
  SHOW(cudaMalloc(&plain, 64 << 20));
  SHOW(cudaMallocHost(&pinned, 4096));
  SHOW(cudaHostAlloc(&mapped, 4096, cudaHostAllocMapped | cudaHostAllocPortable));
  SHOW(cudaHostAlloc(&combined, 4096, cudaHostAllocWriteCombined));
  SHOW(cudaMallocManaged(&managed, 4096));
  std::vector<int> ordinary(4096), registered(4096 * 4);
  int local = 0;
  SHOW(cudaHostRegister(registered.data(), 4096, cudaHostRegisterMapped));
  SHOW(cudaHostRegister(registered.data(), 4096, cudaHostRegisterDefault));
  cudaGetLastError();
  show_pointer("device", plain);
  show_pointer("device inside", plain + 10);
  show_pointer("pinned", pinned);
  show_pointer("mapped", mapped);
  show_pointer("combined", combined);
  show_pointer("managed", managed);
  show_pointer("registered", registered.data());
  show_pointer("ordinary", ordinary.data());
  show_pointer("local", &local);
  show_pointer("symbol", address);
  for (int* host : {pinned, mapped, combined, registered.data()}) {
    SHOW(cudaHostGetFlags(&device_flags, host));
    // Small allocations may share a block, which has the flags of the first one.
    std::printf("flags %u\n", device_flags & ~cudaHostAllocPortable);
  }
  SHOW(cudaHostGetFlags(&device_flags, &local));
  cudaGetLastError();
  SHOW(cudaHostUnregister(registered.data()));
  SHOW(cudaHostUnregister(registered.data()));
  cudaGetLastError();
  show_pointer("unregistered", registered.data());
  SHOW(cudaFreeHost(pinned));
  SHOW(cudaFreeHost(pinned));
  cudaGetLastError();
  SHOW(cudaFree(plain));
  SHOW(cudaFree(plain));
  cudaGetLastError();
  show_pointer("freed", plain);
  // Streams and events.
  cudaStream_t stream;
  int least = 0, greatest = 0, priority = 99;
  SHOW(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  std::printf("range %d %d\n", least, greatest);
  for (int wanted : {-100, -1, 0, 7}) {
    SHOW(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, wanted));
    SHOW(cudaStreamGetPriority(stream, &priority));
    SHOW(cudaStreamGetFlags(stream, &device_flags));
    std::printf("priority %d flags %u\n", priority, device_flags);
    SHOW(cudaStreamDestroy(stream));
  }
  SHOW(cudaStreamGetPriority(nullptr, &priority));
  SHOW(cudaStreamGetFlags(cudaStreamPerThread, &device_flags));
  std::printf("priority %d flags %u\n", priority, device_flags);
  cudaEvent_t event, timed;
  SHOW(cudaEventCreateWithFlags(&event, 0x80));
  cudaGetLastError();
  SHOW(cudaEventCreateWithFlags(&event, cudaEventInterprocess));
  cudaGetLastError();
  SHOW(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  SHOW(cudaEventCreate(&timed));
  float elapsed = 0;
  SHOW(cudaEventElapsedTime(&elapsed, event, timed));
  cudaGetLastError();
  SHOW(cudaEventQuery(event));
  SHOW(cudaEventElapsedTime(&elapsed, timed, timed));
  cudaGetLastError();
  // Threads that end with work in their own streams.
  int* values;
  CUDA(cudaMalloc(&values, 1024));
  CUDA(cudaMemset(values, 0, 1024));
  for (int i = 0; i < 4; ++i) {
    std::thread([&] { work<<<1, 32, 1024, cudaStreamPerThread>>>(values, 100); }).join();
  }
  FINISH();
  CUDA(cudaMemcpy(&counter, values + 3, sizeof counter, cudaMemcpyDeviceToHost));
  std::printf("threads %d\n", counter);
  std::fflush(stdout);
  // A child cannot use CUDA.
  const pid_t child = fork();
  if (child == 0) {
    int count = 0;
    const int driver = cuDeviceGetCount(&count);
    const int runtime = cudaMalloc(&plain, 16);
    std::printf("child: %d %d\n", driver, runtime);
    std::fflush(stdout);
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  std::printf("child ended %d\n", status);
  CUDA(cudaMemcpy(&counter, values + 5, sizeof counter, cudaMemcpyDeviceToHost));
  std::printf("parent goes on %d\n", counter);
  // A reset ends all objects. After it, everything works.
  SHOW(cudaDeviceReset());
  SHOW(cuDevicePrimaryCtxGetState(0, &flags, &active));
  std::printf("active %d\n", active);
  SHOW(cudaMemcpyFromSymbol(&counter, device_counter, sizeof counter));
  std::printf("counter %d\n", counter);
  // Settings of a kernel do not end with the context.
  SHOW(cudaFuncGetAttributes(&attributes, work));
  std::printf("dynamic %d\n", attributes.maxDynamicSharedSizeBytes);
  CUDA(cudaMalloc(&values, 1024));
  work<<<1, 32, 100 << 10>>>(values, 1000);
  SHOW(cudaDeviceSynchronize());
}
