// A program of the driver API, compiled against the cuda.h of one generation: that header's macros
// choose the versions of the symbols that it is linked with. Exits with 0 if every check held.

#include <cstring>
#include <vector>

#include <cuda.h>

#include "tests/generations/registration.h"
#include "tests/programs/driver_checks.h"

namespace {

constexpr int kCount = 1024;

CUcontext create_context(CUdevice device) {
  CUcontext context;
#if CUDA_VERSION >= 13000
  CU(cuCtxCreate(&context, nullptr, 0, device));
#else
  CU(cuCtxCreate(&context, 0, device));
#endif
  return context;
}

void* entry_point(const char* name, int version) {
  void* found = nullptr;
#if CUDA_VERSION >= 12000
  CUdriverProcAddressQueryResult status;
  const CUresult result =
      cuGetProcAddress(name, &found, version, CU_GET_PROC_ADDRESS_DEFAULT, &status);
  int driver = 0;
  CU(cuDriverGetVersion(&driver));
  CHECK(result == (version <= driver ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE));
  CHECK((found != nullptr) == (result == CUDA_SUCCESS && status == CU_GET_PROC_ADDRESS_SUCCESS));
#else
  const CUresult result = cuGetProcAddress(name, &found, version, CU_GET_PROC_ADDRESS_DEFAULT);
  CHECK((found != nullptr) == (result == CUDA_SUCCESS));
#endif
  return found;
}

void test_entry_points() {
  CHECK(entry_point("cuInit", 2000) != nullptr);
  int driver = 0;
  CU(cuDriverGetVersion(&driver));
  CHECK((entry_point("cuMemAlloc", CUDA_VERSION) != nullptr) == (CUDA_VERSION <= driver));
  CHECK(entry_point("cuMemAlloc", 11000) != nullptr);
  CHECK(entry_point("cuNoSuchCall", CUDA_VERSION) == nullptr);
  // CUDA had no graphs before 10.0.
  CHECK(entry_point("cuGraphCreate", 9000) == nullptr);
  CHECK(entry_point("cuGraphCreate", 10000) != nullptr);
  std::puts("entry points");
}

void test_device(CUdevice device) {
  char name[256];
  CU(cuDeviceGetName(name, sizeof name, device));
  CHECK(std::strlen(name) > 0);
  size_t bytes = 0;
  CU(cuDeviceTotalMem(&bytes, device));
  CHECK(bytes > 0);
  CUuuid first, second;
  CU(cuDeviceGetUuid(&first, device));
  CU(cuDeviceGetUuid(&second, device));
  CHECK(std::memcmp(&first, &second, sizeof first) == 0);
  std::puts("device");
}

// Runs the kernel scale, which multiplies values[i] by factors[i % 4].
void run_scale(CUfunction function, CUdeviceptr factors, CUstream stream) {
  const float twice[4] = {2, 2, 2, 2};
  CU(cuMemcpyHtoD(factors, twice, sizeof twice));
  std::vector<float> values(kCount, 3);
  CUdeviceptr data;
  CU(cuMemAlloc(&data, kCount * sizeof(float)));
  CU(cuMemcpyHtoD(data, values.data(), kCount * sizeof(float)));
  int count = kCount;
  void* parameters[] = {&data, &count};
  CU(cuLaunchKernel(function, 4, 1, 1, 256, 1, 1, 0, stream, parameters, nullptr));
  CU(cuStreamSynchronize(stream));
  CU(cuMemcpyDtoH(values.data(), data, kCount * sizeof(float)));
  CHECK(values.front() == 6 && values.back() == 6);
  CU(cuMemFree(data));
}

void test_module() {
  CUmodule module;
  CU(cuModuleLoadData(&module, kernels_fatbin));
  CUfunction function, again;
  CU(cuModuleGetFunction(&function, module, "scale"));
  CU(cuModuleGetFunction(&again, module, "scale"));
  CHECK(function == again);
  CUmodule owner;
  CU(cuFuncGetModule(&owner, function));
  CHECK(owner == module);
  CUdeviceptr address, same;
  size_t bytes;
  CU(cuModuleGetGlobal(&address, &bytes, module, "factors"));
  CU(cuModuleGetGlobal(&same, nullptr, module, "factors"));
  CHECK(bytes == 16 && address == same);
  EXPECT(CUDA_ERROR_NOT_FOUND, cuModuleGetGlobal(&same, &bytes, module, "no_such_variable"));
  EXPECT(CUDA_ERROR_NOT_FOUND, cuModuleGetFunction(&again, module, "no_such_kernel"));
  run_scale(function, address, nullptr);

  // The host uses a managed variable at its address.
  CU(cuModuleGetGlobal(&address, &bytes, module, "managed_value"));
  auto* managed = reinterpret_cast<int*>(address);
  CHECK(bytes == sizeof(int) && *managed == 40);
  *managed = 50;
  CU(cuModuleGetFunction(&function, module, "add_to_managed"));
  int amount = 7;
  void* parameters[] = {&amount};
  CU(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr));
  CU(cuCtxSynchronize());
  CHECK(*managed == 57);
  CU(cuModuleUnload(module));
  std::puts("module");
}

#if CUDA_VERSION >= 12000
// Runtimes of CUDA 12 reach a library's kernels through its module in the current context.
void test_library(CUdevice device) {
  CUlibrary library;
  CU(cuLibraryLoadData(&library, kernels_fatbin, nullptr, nullptr, 0, nullptr, nullptr, 0));
  CUmodule module, again;
  CU(cuLibraryGetModule(&module, library));
  CU(cuLibraryGetModule(&again, library));
  CHECK(module == again);
  CUfunction function, same;
  CU(cuModuleGetFunction(&function, module, "scale"));
  CUkernel kernel;
  CU(cuLibraryGetKernel(&kernel, library, "scale"));
  CU(cuKernelGetFunction(&same, kernel));
  CHECK(function == same);
  CU(cuFuncGetModule(&again, function));
  CHECK(module == again);
  EXPECT(CUDA_ERROR_NOT_FOUND, cuModuleGetFunction(&same, module, "no_such_kernel"));

  CUdeviceptr address, in_library;
  size_t bytes;
  CU(cuModuleGetGlobal(&address, &bytes, module, "factors"));
  CU(cuLibraryGetGlobal(&in_library, nullptr, library, "factors"));
  CHECK(address == in_library && bytes == 16);
  run_scale(function, address, nullptr);
  CU(cuModuleGetGlobal(&address, &bytes, module, "managed_value"));
  CU(cuLibraryGetManaged(&in_library, &bytes, library, "managed_value"));
  CHECK(address == in_library);

  int threads = 0, shared = 0;
  CU(cuFuncGetAttribute(&threads, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, function));
  CHECK(threads > 0);
  CU(cuModuleGetFunction(&function, module, "sum_blocks"));
  CU(cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 60 << 10));
  CU(cuFuncGetAttribute(&shared, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, function));
  CHECK(shared == 60 << 10);

  // Only unloading the library unloads its module. Every context has a module of its own.
  EXPECT(CUDA_ERROR_NOT_PERMITTED, cuModuleUnload(module));
  CUcontext context = create_context(device);
  CU(cuLibraryGetModule(&again, library));
  CHECK(again != module);
  CU(cuModuleGetFunction(&same, again, "scale"));
  CU(cuModuleGetGlobal(&address, &bytes, again, "factors"));
  run_scale(same, address, nullptr);
  CU(cuCtxDestroy(context));
  CU(cuModuleGetFunction(&function, module, "scale"));
  CU(cuModuleGetGlobal(&address, &bytes, module, "factors"));
  run_scale(function, address, nullptr);
  CU(cuLibraryUnload(library));
  std::puts("library");
}
#else
void test_library(CUdevice) { std::puts("library"); }
#endif

CUgraphExec instantiate(CUgraph graph) {
  CUgraphExec executable;
#if CUDA_VERSION >= 12000
  CU(cuGraphInstantiate(&executable, graph, 0));
#else
  CU(cuGraphInstantiate(&executable, graph, nullptr, nullptr, 0));
#endif
  return executable;
}

CUstreamCaptureStatus capture_status(CUstream stream) {
  CUstreamCaptureStatus status;
#if CUDA_VERSION >= 13000
  CU(cuStreamGetCaptureInfo(stream, &status, nullptr, nullptr, nullptr, nullptr, nullptr));
#elif CUDA_VERSION >= 12000
  CU(cuStreamGetCaptureInfo(stream, &status, nullptr, nullptr, nullptr, nullptr));
#else
  cuuint64_t id = 0;
  CU(cuStreamGetCaptureInfo(stream, &status, &id));
  CU(cuStreamGetCaptureInfo_v2(stream, &status, nullptr, nullptr, nullptr, nullptr));
#endif
  return status;
}

void test_graphs() {
  CUmodule module;
  CU(cuModuleLoadData(&module, kernels_fatbin));
  CUfunction count;
  CU(cuModuleGetFunction(&count, module, "count_threads"));
  CUdeviceptr counter;
  CU(cuModuleGetGlobal(&counter, nullptr, module, "counter"));
  CU(cuMemsetD32(counter, 0, 1));
  CU(cuCtxSynchronize());
  CUstream stream;
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  CHECK(capture_status(stream) == CU_STREAM_CAPTURE_STATUS_ACTIVE);
  CU(cuLaunchKernel(count, 2, 1, 1, 32, 1, 1, 0, stream, nullptr, nullptr));
  CUgraph graph;
  CU(cuStreamEndCapture(stream, &graph));
  CHECK(capture_status(stream) == CU_STREAM_CAPTURE_STATUS_NONE);

  CUDA_KERNEL_NODE_PARAMS parameters{};
  parameters.func = count;
  parameters.gridDimX = parameters.gridDimY = parameters.gridDimZ = 1;
  parameters.blockDimX = 100;
  parameters.blockDimY = parameters.blockDimZ = 1;
  CUgraphNode node;
  CU(cuGraphAddKernelNode(&node, graph, nullptr, 0, &parameters));
  parameters = {};
  CU(cuGraphKernelNodeGetParams(node, &parameters));
  CHECK(parameters.func == count && parameters.blockDimX == 100);
  CUgraphExec executable = instantiate(graph);
  CU(cuGraphLaunch(executable, stream));
  CU(cuGraphLaunch(executable, stream));
  CU(cuStreamSynchronize(stream));
  int total = 0;
  CU(cuMemcpyDtoH(&total, counter, sizeof total));
  CHECK(total == 2 * (64 + 100));
#if CUDA_VERSION >= 12000
  CUgraphExecUpdateResultInfo info;
  CU(cuGraphExecUpdate(executable, graph, &info));
#else
  CUgraphExecUpdateResult result;
  CU(cuGraphExecUpdate(executable, graph, &node, &result));
#endif
  CU(cuGraphExecDestroy(executable));
  CU(cuGraphDestroy(graph));
  CU(cuStreamDestroy(stream));
  CU(cuModuleUnload(module));
  std::puts("graphs");
}

void test_memory() {
  CUevent begin, end;
  CU(cuEventCreate(&begin, CU_EVENT_DEFAULT));
  CU(cuEventCreate(&end, CU_EVENT_DEFAULT));
  CU(cuEventRecord(begin, nullptr));
  CUdeviceptr pitched, pooled;
  size_t pitch;
  CU(cuMemAllocPitch(&pitched, &pitch, 200, 16, 4));
  CU(cuMemsetD2D8(pitched, pitch, 5, 200, 16));
  unsigned char row[200] = {};
  CUDA_MEMCPY2D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = pitched;
  copy.srcPitch = pitch;
  copy.dstMemoryType = CU_MEMORYTYPE_HOST;
  copy.dstHost = row;
  copy.dstPitch = copy.WidthInBytes = 200;
  copy.Height = 1;
  copy.srcY = 15;
  CU(cuMemcpy2D(&copy));
  CHECK(row[0] == 5 && row[199] == 5);
  CUdeviceptr base;
  size_t size;
  CU(cuMemGetAddressRange(&base, &size, pitched + 100));
  CHECK(base == pitched && size >= pitch * 16);
  CU(cuMemFree(pitched));
  CU(cuMemAllocAsync(&pooled, 1 << 16, nullptr));
  CU(cuMemFreeAsync(pooled, nullptr));
  void* host;
  CU(cuMemHostAlloc(&host, 4096, CU_MEMHOSTALLOC_DEVICEMAP));
  CUdeviceptr on_device;
  CU(cuMemHostGetDevicePointer(&on_device, host, 0));
  CU(cuMemsetD8(on_device, 9, 4096));
  CU(cuCtxSynchronize());
  CHECK(static_cast<unsigned char*>(host)[4095] == 9);
  CU(cuMemFreeHost(host));
  CU(cuEventRecord(end, nullptr));
  CU(cuEventSynchronize(end));
  float milliseconds = -1;
  CU(cuEventElapsedTime(&milliseconds, begin, end));
  CHECK(milliseconds >= 0);
  CU(cuEventDestroy(begin));
  CU(cuEventDestroy(end));
  std::puts("memory");
}

}  // namespace

int main() {
  CU(cuInit(0));
  int version = 0;
  CU(cuDriverGetVersion(&version));
  CHECK(version / 1000 >= CUDA_VERSION / 1000);
  CUdevice device;
  CU(cuDeviceGet(&device, 0));
  test_entry_points();
  test_device(device);
  CUcontext context;
  CU(cuDevicePrimaryCtxRetain(&context, device));
  CU(cuCtxSetCurrent(context));
  test_module();
  test_library(device);
  test_graphs();
  test_memory();
  CU(cuDevicePrimaryCtxRelease(device));
  return 0;
}
