// What a driver's version means to a program: cuGetProcAddress finds what this version has and
// nothing that later versions added, the driver refuses a call that its version lacks, and all
// other calls work. Prints the same with every version. If SOFTGPU_DRIVER_VERSION is set, the
// driver must have that version. Built with __CUDA_API_VERSION_INTERNAL, which gives every version
// of a function its own name.

#include <cstdio>
#include <cstdlib>

#include <cuda.h>

#include "tests/programs/driver_checks.h"

namespace {

int version = 0;

// If the driver is newer than the libcuda that the program uses, that one reports its own version.
void test_version() {
  CU(cuDriverGetVersion(&version));
  const char* said = std::getenv("SOFTGPU_DRIVER_VERSION");
  CHECK(!said || version == std::atoi(said) ||
        (std::atoi(said) > CUDA_VERSION && version == CUDA_VERSION));
  std::puts("version");
}

void* entry_point(const char* name, int wanted) {
  void* found = nullptr;
  CUdriverProcAddressQueryResult status;
  const CUresult result =
      cuGetProcAddress_v2(name, &found, wanted, CU_GET_PROC_ADDRESS_DEFAULT, &status);
  CHECK(result == CUDA_SUCCESS || !found);
  CHECK(result != CUDA_SUCCESS || (found != nullptr) == (status == CU_GET_PROC_ADDRESS_SUCCESS));
  return found;
}

void test_entry_points() {
  const struct {
    const char* name;
    int since;
  } functions[] = {{"cuInit", 2000},
                   {"cuLibraryLoadData", 12000},
                   {"cuFuncGetParamInfo", 12040},
                   {"cuCtxRecordEvent", 12050},
                   {"cuStreamGetDevice", 12080},
                   {"cuMemGetMemPool", 13000}};
  for (const auto& function : functions) {
    CHECK((entry_point(function.name, function.since) != nullptr) == (function.since <= version));
    CHECK((entry_point(function.name, version) != nullptr) == (function.since <= version));
  }
  // From 12.3 on, this name means another function.
  const void* first = entry_point("cuGraphAddDependencies", 12000);
  CHECK(first != nullptr);
  const void* second = entry_point("cuGraphAddDependencies", 12030);
  CHECK(second != first && second != nullptr);
  // For a version later than its own, a driver finds no function, not even an older one.
  CHECK((entry_point("cuMemAlloc", 13000) != nullptr) == (version >= 13000));
  void* untouched = &version;
  CHECK(cuGetProcAddress_v2("cuMemAlloc", &untouched, version + 10, CU_GET_PROC_ADDRESS_DEFAULT,
                            nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(untouched == &version);
  std::puts("entry points");
}

void check_call(CUresult result, int since) {
  CHECK(result == (since <= version ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED));
}

constexpr const char* kPtx = R"(
.version 6.4
.target sm_75
.address_size 64
.visible .entry add_to(.param .u64 .ptr .global .align 4 values, .param .u8 small,
                       .param .align 8 .b8 pair[16])
{
  .reg .b32 %r<6>;
  .reg .b64 %rd<3>;
  ld.param.u64 %rd1, [values];
  cvta.to.global.u64 %rd2, %rd1;
  ld.param.u8 %r1, [small];
  ld.param.u32 %r2, [pair+4];
  ld.param.u32 %r3, [pair+12];
  add.s32 %r4, %r1, %r2;
  add.s32 %r4, %r4, %r3;
  ld.global.u32 %r5, [%rd2];
  add.s32 %r5, %r5, %r4;
  st.global.u32 [%rd2], %r5;
  ret;
}
)";

struct Arguments {
  CUdeviceptr values = 0;
  unsigned char small = 100;
  int pair[4] = {0, 20, 0, 3};
  void* pointers[3] = {&values, &small, pair};
};

int value_at(CUdeviceptr address) {
  int value = 0;
  CU(cuMemcpyDtoH_v2(&value, address, sizeof value));
  return value;
}

void test_calls(CUcontext context, CUfunction function, CUkernel kernel) {
  const char* name = nullptr;
  CU(cuFuncGetName(&name, function));
  CU(cuKernelGetName(&name, kernel));
  size_t offset = 0, bytes = 0;
  CU(cuFuncGetParamInfo(function, 2, &offset, &bytes));
  CHECK(offset == 16 && bytes == 16);
  CUlibrary library;
  check_call(cuKernelGetLibrary(&library, kernel), 12050);
  CUstream stream;
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CUdevice device;
  check_call(cuStreamGetDevice(stream, &device), 12080);
  check_call(cuCtxSynchronize_v2(context), 13000);
  CU(cuCtxSynchronize());
  CUstreamCaptureStatus status;
  CU(cuStreamGetCaptureInfo_v2(stream, &status, nullptr, nullptr, nullptr, nullptr));
  CU(cuStreamGetCaptureInfo_v3(stream, &status, nullptr, nullptr, nullptr, nullptr, nullptr));
  CU(cuStreamDestroy_v2(stream));
  std::puts("calls");
}

void test_launches(CUfunction function, CUkernel kernel, CUdeviceptr values) {
  Arguments arguments;
  arguments.values = values;
  CU(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, arguments.pointers, nullptr));
  CHECK(value_at(values) == 123);
  CU(cuLaunchKernel(reinterpret_cast<CUfunction>(kernel), 1, 1, 1, 1, 1, 1, 0, nullptr,
                    arguments.pointers, nullptr));
  CHECK(value_at(values) == 246);
  std::puts("launches");
}

void test_graphs(CUfunction function, CUdeviceptr values) {
  Arguments arguments;
  arguments.values = values;
  CUstream stream;
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CU(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  CU(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, arguments.pointers, nullptr));
  CUstreamCaptureStatus status;
  CUgraph graph;
  const CUgraphNode* tips;
  size_t count = 0;
  CU(cuStreamGetCaptureInfo_v2(stream, &status, nullptr, &graph, &tips, &count));
  CHECK(status == CU_STREAM_CAPTURE_STATUS_ACTIVE && count == 1);
  CUgraphNode launched = tips[0], emptied;
  CU(cuGraphAddEmptyNode(&emptied, graph, &launched, 1));
  CU(cuStreamUpdateCaptureDependencies(stream, &emptied, 1, CU_STREAM_SET_CAPTURE_DEPENDENCIES));
  CU(cuStreamEndCapture(stream, &graph));

  CUDA_KERNEL_NODE_PARAMS_v2 parameters{};
  CU(cuGraphKernelNodeGetParams_v2(launched, &parameters));
  CHECK(*static_cast<unsigned char*>(parameters.kernelParams[1]) == 100);
  CUgraphNode second;
  CU(cuGraphAddKernelNode_v2(&second, graph, nullptr, 0, &parameters));
  CU(cuGraphAddDependencies(graph, &emptied, &second, 1));
  CU(cuGraphGetEdges(graph, nullptr, nullptr, &count));
  CHECK(count == 2);
  CU(cuGraphNodeGetDependencies(second, nullptr, &count));
  CHECK(count == 1);
  CUgraphNode next;
  CU(cuGraphNodeGetDependentNodes(launched, &next, &count));
  CHECK(count == 1 && next == emptied);
  CU(cuGraphRemoveDependencies(graph, &launched, &emptied, 1));
  CU(cuGraphAddDependencies(graph, &launched, &emptied, 1));
  CUgraphExec executable;
  CU(cuGraphInstantiateWithFlags(&executable, graph, 0));
  CU(cuGraphLaunch(executable, stream));
  CU(cuStreamSynchronize(stream));
  CHECK(value_at(values) == 246 + 2 * 123);
  CU(cuGraphExecDestroy(executable));
  CU(cuGraphDestroy(graph));
  CU(cuStreamDestroy_v2(stream));
  std::puts("graphs");
}

}  // namespace

int main() {
  test_version();
  test_entry_points();
  CU(cuInit(0));
  test_version();
  test_entry_points();
  CUcontext context;
  CU(cuDevicePrimaryCtxRetain(&context, 0));
  CU(cuCtxSetCurrent(context));
  CUmodule module;
  CU(cuModuleLoadData(&module, kPtx));
  CUfunction function;
  CU(cuModuleGetFunction(&function, module, "add_to"));
  CUlibrary library;
  CU(cuLibraryLoadData(&library, kPtx, nullptr, nullptr, 0, nullptr, nullptr, 0));
  CUkernel kernel;
  CU(cuLibraryGetKernel(&kernel, library, "add_to"));
  CUdeviceptr values;
  CU(cuMemAlloc_v2(&values, 4));
  CU(cuMemsetD32_v2(values, 0, 1));
  test_calls(context, function, kernel);
  test_launches(function, kernel, values);
  test_graphs(function, values);
  CU(cuMemFree_v2(values));
  CU(cuLibraryUnload(library));
  CU(cuModuleUnload(module));
  CU(cuDevicePrimaryCtxRelease_v2(0));
}
