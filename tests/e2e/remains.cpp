// A program that leaves something behind when it ends, and one that looks for what others have
// left.
//
//   remains leave WHAT    leaves WHAT; "killed" waits until it is killed
//   remains look          prints what it finds; equal in every clean process
//   remains told ...      does that once it gets a line
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <cuda.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../programs/driver_checks.h"

namespace {

constexpr unsigned kPattern = 0xabababab;
constexpr size_t kBytes = 16 << 20;
constexpr size_t kMost = 32 << 20;  // that is searched

constexpr char kCode[] = R"(
.version 7.0
.target sm_75
.address_size 64
.visible .global .align 4 .u32 word = 7;
.visible .entry put(.param .u64 where) {
  .reg .b64 %rd<3>;
  .reg .b32 %r<2>;
  ld.param.u64 %rd1, [where];
  mov.u32 %r1, 0xabababab;
  st.global.u32 [%rd1], %r1;
  ret;
}
.visible .entry spin() {
again:
  bra again;
}
)";

CUstream stream;

CUdeviceptr filled() {
  CUdeviceptr memory;
  CU(cuMemAlloc(&memory, kBytes));
  CU(cuMemsetD32(memory, kPattern, kBytes / 4));
  return memory;
}

void launch(const char* name, CUdeviceptr argument = 0) {
  CUmodule module;
  CUfunction function;
  CU(cuModuleLoadData(&module, kCode));
  CU(cuModuleGetFunction(&function, module, name));
  void* arguments[] = {&argument};
  CU(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, argument ? arguments : nullptr,
                    nullptr));
}

void module() {
  launch("put", filled());
  CU(cuCtxSynchronize());
}

void library() {
  CUlibrary library;
  CUkernel kernel;
  CUdeviceptr word, memory = filled();
  size_t bytes;
  CU(cuLibraryLoadData(&library, kCode, nullptr, nullptr, 0, nullptr, nullptr, 0));
  CU(cuLibraryGetKernel(&kernel, library, "put"));
  CU(cuLibraryGetGlobal(&word, &bytes, library, "word"));
  CU(cuMemsetD32(word, kPattern, 1));
  void* arguments[] = {&memory};
  CU(cuLaunchKernel(reinterpret_cast<CUfunction>(kernel), 1, 1, 1, 1, 1, 1, 0, nullptr, arguments,
                    nullptr));
  CU(cuCtxSynchronize());
}

void streams_and_events() {
  for (int i = 0; i < 100; ++i) {
    CUstream other;
    CUevent event;
    CU(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    CU(cuEventCreate(&event, 0));
    CU(cuEventRecord(event, other));
  }
}

// Memory at an address that is the same in every process.
void* at_its_address() {
  void* const wanted = reinterpret_cast<void*>(0x6000'0000'0000);
  void* const memory = ::mmap(wanted, kBytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  CHECK(memory == wanted);
  return memory;
}

void page_locked() {
  void* memory;
  CU(cuMemHostAlloc(&memory, kBytes, 0));
  std::memset(memory, 0xab, kBytes);
  void* const own = at_its_address();
  std::memset(own, 0xab, kBytes);
  CU(cuMemHostRegister(own, kBytes, 0));
  CU(cuMemcpyHtoDAsync(filled(), own, kBytes, stream));
  CU(cuCtxSynchronize());
}

void staged() {
  std::vector<unsigned> words(kBytes / 4, kPattern);
  CU(cuMemcpyHtoD(filled(), words.data(), kBytes));
}

void context() {
  CUcontext other;
  CU(cuCtxCreate(&other, nullptr, 0, 0));
  CU(cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, 3 << 20));
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  module();
}

void limits() {
  CU(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 4096));
  CU(cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, 3 << 20));
  CU(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 16 << 20));
  CU(cuCtxSetCacheConfig(CU_FUNC_CACHE_PREFER_L1));
}

void flags() { CU(cuDevicePrimaryCtxSetFlags(0, CU_CTX_SCHED_BLOCKING_SYNC)); }

void reset() {
  module();
  CU(cuDevicePrimaryCtxReset(0));
}

void pool_memory() {
  CUdeviceptr memory;
  CU(cuMemAllocAsync(&memory, kBytes, stream));
  CU(cuMemsetD32Async(memory, kPattern, kBytes / 4, stream));
  CU(cuCtxSynchronize());
}

void pool_setting() {
  CUmemoryPool pool;
  cuuint64_t all = ~0ull;
  CU(cuDeviceGetDefaultMemPool(&pool, 0));
  CU(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all));
}

void other_pool() {
  CUmemoryPool pool;
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  CU(cuMemPoolCreate(&pool, &properties));
  CU(cuDeviceSetMemPool(0, pool));
}

void virtual_memory() {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  CUmemGenericAllocationHandle memory;
  CUdeviceptr address;
  CU(cuMemCreate(&memory, kBytes, &properties, 0));
  CU(cuMemAddressReserve(&address, kBytes, 0, 0, 0));
  CU(cuMemMap(address, kBytes, 0, memory, 0));
}

void exported() {
  CUipcMemHandle handle;
  CU(cuIpcGetMemHandle(&handle, filled()));
}

void host_function() {
  CU(cuLaunchHostFunc(
      stream, [](void*) {}, nullptr));
  CU(cuCtxSynchronize());
}

void managed() {
  CUdeviceptr memory;
  CU(cuMemAllocManaged(&memory, kBytes, CU_MEM_ATTACH_GLOBAL));
  CU(cuMemsetD32(memory, kPattern, kBytes / 4));
}

void graph() {
  CUgraph graph;
  CU(cuGraphCreate(&graph, 0));
}

void error() {
  launch("put", 64);
  EXPECT(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
}

void endless() { launch("spin"); }

void killed() {
  module();
  std::printf("ready\n");
  std::fflush(stdout);
  ::pause();
}

const std::map<std::string, std::function<void()>> kLeaves = {
    {"nothing", [] {}},
    {"module", module},
    {"library", library},
    {"streams_and_events", streams_and_events},
    {"page_locked", page_locked},
    {"staged", staged},
    {"context", context},
    {"limits", limits},
    {"flags", flags},
    {"reset", reset},
    {"pool_memory", pool_memory},
    {"pool_setting", pool_setting},
    {"other_pool", other_pool},
    {"virtual_memory", virtual_memory},
    {"exported", exported},
    {"host_function", host_function},
    {"managed", managed},
    {"graph", graph},
    {"error", error},
    {"endless", endless},
    {"killed", killed},
};

void look() {
  size_t free = 0, total = 0;
  CU(cuMemGetInfo(&free, &total));
  std::printf("memory in use: %zu\n", total - free);
  for (int limit = 0; limit < CU_LIMIT_MAX; ++limit) {
    size_t value = 0;
    const CUresult result = cuCtxGetLimit(&value, static_cast<CUlimit>(limit));
    std::printf("limit %d: %zu (%d)\n", limit, value, static_cast<int>(result));
  }
  CUfunc_cache cache;
  CU(cuCtxGetCacheConfig(&cache));
  unsigned flags = 0;
  int active = 0;
  CU(cuDevicePrimaryCtxGetState(0, &flags, &active));
  unsigned of_context = 0;
  CU(cuCtxGetFlags(&of_context));
  CUmemoryPool pool, current;
  cuuint64_t threshold = 1, used = 1;
  CU(cuDeviceGetDefaultMemPool(&pool, 0));
  CU(cuDeviceGetMemPool(&current, 0));
  CU(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
  CU(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
  std::printf("cache %d, flags %u and %u, default pool %d, threshold %llu, used %llu\n",
              static_cast<int>(cache), flags, of_context, pool == current,
              static_cast<unsigned long long>(threshold), static_cast<unsigned long long>(used));
  CUlibrary library;
  CUdeviceptr word;
  size_t bytes;
  unsigned value = 0;
  CU(cuLibraryLoadData(&library, kCode, nullptr, nullptr, 0, nullptr, nullptr, 0));
  CU(cuLibraryGetGlobal(&word, &bytes, library, "word"));
  CU(cuMemcpyDtoH(&value, word, sizeof value));
  std::printf("global: %u\n", value);
  // At the address that others had registered.
  void* const own = at_its_address();
  CU(cuMemHostRegister(own, kBytes, 0));
  CUdeviceptr memory;
  CU(cuMemAlloc(&memory, kMost));
  std::vector<unsigned> words(kMost / 4, 1);
  CU(cuMemcpyDtoH(words.data(), memory, kMost));
  size_t stale = 0;
  for (const unsigned one : words) stale += one == kPattern;
  std::printf("words of others: %zu\n", stale);
}

}  // namespace

int main(int count, char** arguments) {
  std::string mode = count > 1 ? arguments[1] : "";
  if (mode == "told" && count > 2) {
    std::printf("waits\n");
    std::fflush(stdout);
    (void)std::getchar();
    ++arguments, --count;
    mode = arguments[1];
  }
  CU(cuInit(0));
  CUcontext primary;
  CU(cuDevicePrimaryCtxRetain(&primary, 0));
  CU(cuCtxSetCurrent(primary));
  if (mode == "look") {
    look();
    return 0;
  }
  const auto what = kLeaves.find(count > 2 ? arguments[2] : "");
  if (mode != "leave" || what == kLeaves.end()) return 2;
  if (what->first != "nothing") CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  what->second();
}
