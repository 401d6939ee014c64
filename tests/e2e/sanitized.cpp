// A host program that is built with a sanitizer. Its kernels use device memory and page-locked,
// registered and managed memory. hosts_test.py runs it. With the argument "overflow", the host code
// then writes behind an allocation, which AddressSanitizer must report.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include <cuda.h>

namespace {

constexpr char kAddOne[] = R"(
.version 6.0
.target sm_50
.address_size 64
.visible .entry add_one(.param .u64 values) {
  .reg .u64 %address, %offset;
  .reg .u32 %index, %value;
  ld.param.u64 %address, [values];
  mov.u32 %index, %tid.x;
  mul.wide.u32 %offset, %index, 4;
  add.u64 %address, %address, %offset;
  ld.global.u32 %value, [%address];
  add.u32 %value, %value, 1;
  st.global.u32 [%address], %value;
  ret;
}
)";
constexpr int kCount = 32;
constexpr size_t kBytes = 100000;

void check(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  std::fprintf(stderr, "%s: error %d\n", what, static_cast<int>(result));
  std::exit(3);
}
#define CHECK(call) check(call, #call)

CUfunction add_one;

// Checks that the kernel changes the memory that the host reads at `host`.
void use(const char* name, CUdeviceptr device, int* host) {
  for (int i = 0; i < kCount; ++i) host[i] = i;
  void* parameters[] = {&device};
  CHECK(cuLaunchKernel(add_one, 1, 1, 1, kCount, 1, 1, 0, nullptr, parameters, nullptr));
  CHECK(cuCtxSynchronize());
  for (int i = 0; i < kCount; ++i) {
    if (host[i] != i + 1) check(CUDA_ERROR_UNKNOWN, name);
  }
  std::printf("%s\n", name);
}

}  // namespace

int main(int count, char** arguments) {
  CUcontext context;
  CUmodule module;
  CHECK(cuInit(0));
  CHECK(cuDevicePrimaryCtxRetain(&context, 0));
  CHECK(cuCtxSetCurrent(context));
  CHECK(cuModuleLoadData(&module, kAddOne));
  CHECK(cuModuleGetFunction(&add_one, module, "add_one"));

  CUdeviceptr memory;
  const auto source = std::make_unique<char[]>(kBytes), back = std::make_unique<char[]>(kBytes);
  std::memset(source.get(), 7, kBytes);
  CHECK(cuMemAlloc(&memory, kBytes));
  CHECK(cuMemcpyHtoD(memory, source.get(), kBytes));
  CHECK(cuMemcpyDtoH(back.get(), memory, kBytes));
  if (std::memcmp(source.get(), back.get(), kBytes) != 0) check(CUDA_ERROR_UNKNOWN, "copies");
  std::printf("copies\n");
  CHECK(cuMemFree(memory));

  void* locked;
  CHECK(cuMemHostAlloc(&locked, kBytes, CU_MEMHOSTALLOC_DEVICEMAP));
  use("page-locked", reinterpret_cast<CUdeviceptr>(locked), static_cast<int*>(locked));
  CHECK(cuMemFreeHost(locked));

  const auto registered = std::make_unique<int[]>(kBytes / sizeof(int));
  CHECK(cuMemHostRegister(registered.get(), kBytes, CU_MEMHOSTREGISTER_DEVICEMAP));
  CHECK(cuMemHostGetDevicePointer(&memory, registered.get(), 0));
  use("registered", memory, registered.get());
  CHECK(cuMemHostUnregister(registered.get()));

  CHECK(cuMemAllocManaged(&memory, kBytes, CU_MEM_ATTACH_GLOBAL));
  use("managed", memory, reinterpret_cast<int*>(memory));
  CHECK(cuMemFree(memory));

  if (count > 1 && std::strcmp(arguments[1], "overflow") == 0) {
    const auto small = std::make_unique<char[]>(100);
    small[static_cast<size_t>(99 + count - 1)] = 1;
  }
  return 0;
}
