// Lifetimes: which calls work before a context exists, in a released primary context, and without a
// current context; which objects end with a context, and which belong to its device.
#include <cstdio>
#include <cstdlib>
#include <initializer_list>

#include <cuda.h>
#include <cudaProfiler.h>

#include "driver_checks.h"

namespace {

const char kCode[] = R"(
.version 7.0
.target sm_70
.address_size 64
.visible .global .align 4 .u32 counter = 3;
.visible .entry count(.param .u64 out) {
  .reg .u64 %d<3>;
  .reg .u32 %r<3>;
  ld.param.u64 %d1, [out];
  ld.global.u32 %r1, [counter];
  add.u32 %r1, %r1, 1;
  st.global.u32 [counter], %r1;
  st.global.u32 [%d1], %r1;
  ret;
}
)";

constexpr size_t kBytes = 4096;
constexpr size_t kGranule = 2 << 20;
alignas(kBytes) char application_memory[kBytes];

CUlibrary library;
CUkernel kernel;

bool is_memory(const void* address) {
  unsigned type = 0;
  const CUresult result = cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                                reinterpret_cast<CUdeviceptr>(address));
  CHECK(result == CUDA_SUCCESS || result == CUDA_ERROR_INVALID_VALUE);
  return result == CUDA_SUCCESS;
}
bool is_memory(CUdeviceptr address) { return is_memory(reinterpret_cast<void*>(address)); }

bool primary_is_active() {
  unsigned flags = 0;
  int active = 0;
  CU(cuDevicePrimaryCtxGetState(0, &flags, &active));
  return active != 0;
}

int run(CUstream stream, CUdeviceptr out) {
  void* parameters[] = {&out};
  CU(cuLaunchKernel(reinterpret_cast<CUfunction>(kernel), 1, 1, 1, 1, 1, 1, 0, stream, parameters,
                    nullptr));
  CU(cuStreamSynchronize(stream));
  int value = 0;
  CU(cuMemcpyDtoHAsync(&value, out, sizeof value, stream));
  CU(cuStreamSynchronize(stream));
  return value;
}

// Calls that must be refused without a live context, and calls that need none.
void check_without_context(CUresult refusal) {
  CUfunction function;
  CUmodule module;
  CUdeviceptr address;
  CUstream stream;
  CUevent event;
  void* host;
  size_t bytes, offset;
  int value = 0, least, greatest;
  EXPECT(refusal, cuKernelGetFunction(&function, kernel));
  EXPECT(refusal, cuKernelGetParamInfo(kernel, 0, &offset, &bytes));
  EXPECT(refusal, cuLibraryGetModule(&module, library));
  EXPECT(refusal, cuLibraryGetGlobal(&address, &bytes, library, "counter"));
  EXPECT(refusal, cuOccupancyMaxActiveBlocksPerMultiprocessor(
                      &value, reinterpret_cast<CUfunction>(kernel), 64, 0));
  EXPECT(refusal, cuModuleLoadData(&module, kCode));
  EXPECT(refusal, cuMemAlloc(&address, kBytes));
  EXPECT(refusal, cuMemHostAlloc(&host, kBytes, 0));
  EXPECT(refusal, cuMemHostRegister(application_memory, kBytes, 0));
  EXPECT(refusal, cuMemAllocManaged(&address, kBytes, CU_MEM_ATTACH_GLOBAL));
  EXPECT(refusal, cuMemGetInfo(&bytes, &offset));
  EXPECT(refusal, cuStreamCreate(&stream, 0));
  EXPECT(refusal, cuStreamSynchronize(nullptr));
  EXPECT(refusal, cuEventCreate(&event, 0));
  EXPECT(refusal, cuCtxSynchronize());
  EXPECT(refusal, cuProfilerStart());
  EXPECT(refusal, cuCtxGetLimit(&bytes, CU_LIMIT_STACK_SIZE));
  EXPECT(refusal, cuCtxGetStreamPriorityRange(&least, &greatest));

  CU(cuKernelGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, kernel, 0));
  CHECK(value >= 1024);
  CU(cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 2048, kernel, 0));
  const char* name;
  CU(cuKernelGetName(&name, kernel));
  CUkernel found;
  CU(cuLibraryGetKernel(&found, library, "count"));
  CHECK(found == kernel);
  CHECK(!is_memory(application_memory));
  EXPECT(refusal == CUDA_ERROR_INVALID_CONTEXT ? CUDA_SUCCESS : refusal, cuMemFree(0));
  CUgraph graph;
  CUgraphNode node;
  CU(cuGraphCreate(&graph, 0));
  CU(cuGraphAddEmptyNode(&node, graph, nullptr, 0));
  CU(cuGraphDestroy(graph));
  CU(cuMemAddressReserve(&address, kGranule, 0, 0, 0));
  CU(cuMemAddressFree(address, kGranule));
}

// The primary context of device 0, reset or released by its last owner.
void given_back(bool reset) {
  CUcontext context, again;
  CU(cuDevicePrimaryCtxRetain(&context, 0));
  CU(cuCtxSetCurrent(context));
  CUdeviceptr memory;
  CU(cuMemAlloc(&memory, kBytes));
  CHECK(run(nullptr, memory) == 4);
  CU(reset ? cuDevicePrimaryCtxReset(0) : cuDevicePrimaryCtxRelease(0));
  CHECK(!primary_is_active());
  CHECK(!is_memory(memory));
  EXPECT(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuMemFree(memory));
  check_without_context(CUDA_ERROR_CONTEXT_IS_DESTROYED);
  EXPECT(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuMemsetD8(memory, 0, 16));
  unsigned long long id;
  unsigned version, flags;
  CUdevice device;
  EXPECT(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuCtxGetId(context, &id));
  EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuCtxGetApiVersion(context, &version));
  CU(cuCtxGetCurrent(&again));
  CHECK(again == context);
  CU(cuCtxGetDevice(&device));
  CU(cuCtxGetFlags(&flags));
  CU(cuCtxPushCurrent(context));
  CU(cuCtxPopCurrent(&again));

  CU(cuDevicePrimaryCtxRetain(&again, 0));
  CHECK(again == context && primary_is_active());
  CU(cuMemAlloc(&memory, kBytes));
  CHECK(run(nullptr, memory) == 4);             // as if just loaded
  if (reset) CU(cuDevicePrimaryCtxRelease(0));  // a reset does not end references
  CU(cuDevicePrimaryCtxRelease(0));
  CHECK(!primary_is_active());
  EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuDevicePrimaryCtxRelease(0));
  CU(cuCtxSetCurrent(nullptr));
  std::printf("%s\n", reset ? "reset" : "released");
}

enum class End { kReset, kRelease, kDestroy };

CUcontext begin(End how) {
  CUcontext context;
  if (how == End::kDestroy) {
    CU(cuCtxCreate(&context, nullptr, 0, 0));
  } else {
    CU(cuDevicePrimaryCtxRetain(&context, 0));
    CU(cuCtxSetCurrent(context));
  }
  return context;
}

void end(End how, CUcontext context) {
  switch (how) {
    case End::kReset:
      CU(cuDevicePrimaryCtxReset(0));
      break;
    case End::kRelease:
      CU(cuDevicePrimaryCtxRelease(0));
      break;
    case End::kDestroy:
      CU(cuCtxDestroy(context));
      break;
  }
}

// Page-locked and managed memory end with the context; memory of pools, mapped memory and graphs
// stay.
void memory(End how) {
  CUcontext context = begin(how);
  CUgraph graph;
  CUgraphNode node;
  CU(cuGraphCreate(&graph, 0));
  CU(cuGraphAddEmptyNode(&node, graph, nullptr, 0));
  void *host, *portable;
  CUdeviceptr managed, pooled, reserved;
  CU(cuMemHostAlloc(&host, kBytes, 0));
  CU(cuMemHostAlloc(&portable, kBytes, CU_MEMHOSTALLOC_PORTABLE));
  CU(cuMemHostRegister(application_memory, kBytes, 0));
  CU(cuMemAllocManaged(&managed, kBytes, CU_MEM_ATTACH_GLOBAL));
  CUmemoryPool pool, made;
  CU(cuDeviceGetDefaultMemPool(&pool, 0));
  CUmemPoolProps pool_properties{};
  pool_properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  pool_properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  CU(cuMemPoolCreate(&made, &pool_properties));
  cuuint64_t threshold = 1 << 20;
  CU(cuMemPoolSetAttribute(made, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
  CU(cuMemAllocAsync(&pooled, kBytes, nullptr));
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  CUmemGenericAllocationHandle allocation;
  CU(cuMemCreate(&allocation, kGranule, &properties, 0));
  CU(cuMemAddressReserve(&reserved, kGranule, 0, 0, 0));
  CU(cuMemMap(reserved, kGranule, 0, allocation, 0));
  CUmemAccessDesc access{};
  access.location = properties.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  CU(cuMemSetAccess(reserved, kGranule, &access, 1));
  CU(cuMemsetD32(pooled, 5, 16));
  CU(cuMemsetD32(reserved, 7, 16));
  CU(cuCtxSynchronize());

  end(how, context);
  CHECK(!is_memory(host) && !is_memory(portable) && !is_memory(managed));
  CHECK(!is_memory(application_memory));
  CHECK(is_memory(pooled) && is_memory(reserved));
  size_t nodes = 0;
  CU(cuGraphAddEmptyNode(&node, graph, &node, 1));
  CU(cuGraphGetNodes(graph, nullptr, &nodes));
  CHECK(nodes == 2);
  CU(cuMemUnmap(reserved, kGranule));
  CU(cuMemMap(reserved, kGranule, 0, allocation, 0));
  CU(cuMemSetAccess(reserved, kGranule, &access, 1));
  application_memory[0] = 1;  // the application's own memory stays usable

  context = begin(how);
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFreeHost(host));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFree(managed));
  EXPECT(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, cuMemHostUnregister(application_memory));
  CU(cuMemHostRegister(application_memory, kBytes, 0));
  CHECK(is_memory(application_memory));
  CHECK(run(nullptr, reinterpret_cast<CUdeviceptr>(application_memory)) == 4);
  CU(cuMemHostUnregister(application_memory));
  unsigned value = 0;
  CU(cuMemcpyDtoH(&value, pooled, sizeof value));
  CHECK(value == 5);
  CU(cuMemcpyDtoH(&value, reserved, sizeof value));
  CHECK(value == 7);
  threshold = 0;
  CU(cuMemPoolGetAttribute(made, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
  CHECK(threshold == 1 << 20);
  CUmemoryPool same;
  CU(cuDeviceGetDefaultMemPool(&same, 0));
  CHECK(same == pool);
  CUdeviceptr more;
  CU(cuMemAllocFromPoolAsync(&more, kBytes, made, nullptr));
  CU(cuMemFreeAsync(more, nullptr));
  CU(cuCtxSynchronize());
  CU(cuMemPoolDestroy(made));
  CU(cuMemFree(pooled));
  CU(cuMemUnmap(reserved, kGranule));
  CU(cuMemAddressFree(reserved, kGranule));
  CU(cuMemRelease(allocation));
  CU(cuGraphDestroy(graph));
  end(how, context);
  if (how == End::kReset) {  // the references that both begin() took
    CU(cuDevicePrimaryCtxRelease(0));
    CU(cuDevicePrimaryCtxRelease(0));
  }
  CU(cuCtxSetCurrent(nullptr));
}

// Without a current context: a stream and a function name their contexts, and memory is found by
// its address.
void without_current() {
  CUcontext context = begin(End::kReset), of_stream;
  CUstream stream;
  CUevent event;
  CUdeviceptr memory, pooled;
  void* host;
  CUmodule module;
  CUfunction function;
  CU(cuModuleLoadData(&module, kCode));
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CU(cuEventCreate(&event, 0));
  CU(cuMemAlloc(&memory, kBytes));
  CU(cuMemHostAlloc(&host, kBytes, 0));
  CU(cuCtxSetCurrent(nullptr));
  auto* words = static_cast<volatile unsigned*>(host);
  words[0] = 9;
  const auto host_address = reinterpret_cast<CUdeviceptr>(host);
  CU(cuMemcpyAsync(memory, host_address, kBytes, stream));
  CU(cuMemsetD32Async(memory + 4, 11, 1, stream));
  CU(cuMemcpyDtoHAsync(host, memory, kBytes, stream));
  static volatile int called = 0;
  CU(cuLaunchHostFunc(
      stream, [](void*) { called = called + 1; }, nullptr));
  CU(cuEventRecord(event, stream));
  CU(cuStreamWaitEvent(stream, event, 0));
  CU(cuStreamSynchronize(stream));
  CHECK(words[0] == 9 && words[1] == 11 && called == 1);
  CU(cuEventQuery(event));
  CU(cuStreamGetCtx(stream, &of_stream));
  CHECK(of_stream == context);
  CU(cuMemAllocAsync(&pooled, kBytes, stream));
  CHECK(run(stream, pooled) == 4);
  CU(cuMemFreeAsync(pooled, stream));
  words[0] = 9;
  void* parameters[] = {&host};
  CU(cuLaunchKernel(reinterpret_cast<CUfunction>(kernel), 1, 1, 1, 1, 1, 1, 0, stream, parameters,
                    nullptr));
  CU(cuStreamSynchronize(stream));
  CHECK(words[0] == 5);

  int value = 0;
  const char* name;
  CUmodule of_function;
  CUfunctionLoadingState state;
  CUdeviceptr counter;
  CU(cuModuleGetFunction(&function, module, "count"));
  CU(cuModuleGetGlobal(&counter, nullptr, module, "counter"));
  CU(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, function));
  CU(cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 1024));
  CU(cuFuncGetName(&name, function));
  CU(cuFuncGetModule(&of_function, function));
  CU(cuFuncIsLoaded(&state, function));
  CHECK(of_function == module);
  check_without_context(CUDA_ERROR_INVALID_CONTEXT);
  size_t bytes;
  unsigned flags;
  EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuMemGetAddressRange(&counter, &bytes, memory));
  EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuMemHostGetFlags(&flags, host));
  EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuMemHostGetDevicePointer(&counter, host, 0));
  EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuMemcpy(memory, host_address, 16));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFree(reinterpret_cast<CUdeviceptr>(application_memory)));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFreeHost(application_memory));
  CU(cuEventDestroy(event));
  CU(cuStreamDestroy(stream));
  CU(cuModuleUnload(module));
  CU(cuMemFree(memory));
  CU(cuMemFreeHost(host));
  CU(cuDevicePrimaryCtxRelease(0));
  std::printf("without a current context\n");
}

// If the current context has ended, a stream of a live context still accepts all work except
// copies.
void current_given_back() {
  CUcontext alive, context;
  CUstream stream;
  CUdeviceptr memory;
  unsigned value = 0;
  CU(cuCtxCreate(&alive, nullptr, 0, 0));
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CU(cuMemAlloc(&memory, kBytes));
  CU(cuDevicePrimaryCtxRetain(&context, 0));
  CU(cuCtxSetCurrent(context));
  CU(cuDevicePrimaryCtxReset(0));
  CU(cuMemsetD32Async(memory, 13, 1, stream));
  EXPECT(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuMemcpyDtoHAsync(&value, memory, 4, stream));
  EXPECT(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuMemFree(memory));
  EXPECT(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuMemFreeHost(nullptr));
  EXPECT(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuMemHostUnregister(application_memory));
  CU(cuStreamSynchronize(stream));
  CU(cuCtxSetCurrent(alive));
  CU(cuMemcpyDtoH(&value, memory, 4));
  CHECK(value == 13);
  CU(cuMemFree(memory));
  CU(cuCtxDestroy(alive));
  CU(cuDevicePrimaryCtxRelease(0));
  std::printf("with a current context given back\n");
}

// The end of one device's context does not change page-locked memory of another device's context.
void other_device() {
  CUcontext first, second;
  CU(cuDevicePrimaryCtxRetain(&first, 0));
  CU(cuDevicePrimaryCtxRetain(&second, 1));
  CU(cuCtxSetCurrent(first));
  void* host;
  CU(cuMemHostAlloc(&host, kBytes, 0));
  CU(cuMemHostRegister(application_memory, kBytes, 0));
  CU(cuDevicePrimaryCtxReset(1));
  CHECK(is_memory(host) && is_memory(application_memory));
  CU(cuDevicePrimaryCtxRetain(&second, 1));
  CU(cuCtxSetCurrent(second));
  CHECK(run(nullptr, reinterpret_cast<CUdeviceptr>(host)) == 4);
  CHECK(run(nullptr, reinterpret_cast<CUdeviceptr>(application_memory)) == 5);
  CU(cuDevicePrimaryCtxReset(0));
  CHECK(!is_memory(host) && !is_memory(application_memory));
  for (int i = 0; i < 2; ++i) CU(cuDevicePrimaryCtxRelease(1));
  CU(cuDevicePrimaryCtxRelease(0));
  CU(cuCtxSetCurrent(nullptr));
}

}  // namespace

int main() {
  CU(cuInit(0));
  CU(cuLibraryLoadData(&library, kCode, nullptr, nullptr, 0, nullptr, nullptr, 0));
  CU(cuLibraryGetKernel(&kernel, library, "count"));
  check_without_context(CUDA_ERROR_INVALID_CONTEXT);
  std::printf("no context yet\n");
  given_back(true);
  given_back(false);
  for (const End how : {End::kReset, End::kRelease, End::kDestroy}) memory(how);
  std::printf("memory\n");
  without_current();
  current_given_back();
  int devices = 0;
  CU(cuDeviceGetCount(&devices));
  if (devices > 1) other_device();
  std::printf("done\n");
}
