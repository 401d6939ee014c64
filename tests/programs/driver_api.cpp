// The driver API alone: contexts, PTX text and a fatbin from a file, kernels, globals, errors.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <cuda.h>

#include "driver_checks.h"

namespace {

const char kPtx[] = R"(
.version 7.0
.target sm_52
.address_size 64
.visible .global .align 4 .u32 calls = 40;
.visible .const .align 4 .f32 scale[2] = {0f3F000000, 0f40400000};
.visible .entry axpy(.param .u64 x, .param .u64 y, .param .f32 a, .param .u32 n)
{
  .reg .pred %p<2>;
  .reg .b32 %r<8>;
  .reg .f32 %f<6>;
  .reg .b64 %rd<8>;
  mov.u32 %r1, %ctaid.x;
  mov.u32 %r2, %ntid.x;
  mov.u32 %r3, %tid.x;
  mad.lo.s32 %r4, %r1, %r2, %r3;
  ld.param.u32 %r5, [n];
  setp.ge.u32 %p1, %r4, %r5;
  @%p1 bra done;
  ld.param.u64 %rd1, [x];
  ld.param.u64 %rd2, [y];
  cvta.to.global.u64 %rd3, %rd1;
  cvta.to.global.u64 %rd4, %rd2;
  mul.wide.u32 %rd5, %r4, 4;
  add.s64 %rd6, %rd3, %rd5;
  add.s64 %rd7, %rd4, %rd5;
  ld.global.f32 %f1, [%rd6];
  ld.global.f32 %f2, [%rd7];
  ld.param.f32 %f3, [a];
  ld.const.f32 %f4, [scale+4];
  fma.rn.f32 %f5, %f1, %f3, %f2;
  mul.f32 %f5, %f5, %f4;
  st.global.f32 [%rd7], %f5;
  atom.global.add.u32 %r6, [calls], 1;
done:
  ret;
}
)";

std::string folder_of_this_program(const char* argv0) {
  const std::string path = argv0;
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash);
}

void text_module() {
  CUmodule module;
  CU(cuModuleLoadData(&module, kPtx));
  CUfunction axpy;
  CU(cuModuleGetFunction(&axpy, module, "axpy"));
  EXPECT(CUDA_ERROR_NOT_FOUND, cuModuleGetFunction(&axpy, module, "nothing"));
  CU(cuModuleGetFunction(&axpy, module, "axpy"));

  unsigned n = 1000;
  float a = 2;
  std::vector<float> x(n), y(n);
  for (unsigned i = 0; i < n; ++i) {
    x[i] = 0.5f * i;
    y[i] = 10.0f - i;
  }
  CUdeviceptr dx, dy;
  CU(cuMemAlloc(&dx, n * sizeof(float)));
  CU(cuMemAlloc(&dy, n * sizeof(float)));
  CU(cuMemcpyHtoD(dx, x.data(), n * sizeof(float)));
  CU(cuMemcpyHtoD(dy, y.data(), n * sizeof(float)));
  void* parameters[] = {&dx, &dy, &a, &n};
  CU(cuLaunchKernel(axpy, 8, 1, 1, 128, 1, 1, 0, nullptr, parameters, nullptr));
  CU(cuCtxSynchronize());
  std::vector<float> result(n);
  CU(cuMemcpyDtoH(result.data(), dy, n * sizeof(float)));
  for (unsigned i = 0; i < n; ++i) CHECK(result[i] == (x[i] * a + y[i]) * 3);

  CUdeviceptr global;
  size_t size;
  CU(cuModuleGetGlobal(&global, &size, module, "calls"));
  CHECK(size == 4);
  unsigned calls;
  CU(cuMemcpyDtoH(&calls, global, sizeof calls));
  CHECK(calls == 1040);
  EXPECT(CUDA_ERROR_NOT_FOUND, cuModuleGetGlobal(&global, &size, module, "missing"));
  std::printf("calls %u\n", calls);

  EXPECT(CUDA_ERROR_INVALID_VALUE,
         cuLaunchKernel(axpy, 0, 1, 1, 128, 1, 1, 0, nullptr, parameters, nullptr));
  EXPECT(CUDA_ERROR_INVALID_VALUE,
         cuLaunchKernel(axpy, 1, 1, 1, 2048, 1, 1, 0, nullptr, parameters, nullptr));
  CU(cuMemFree(dx));
  CU(cuMemFree(dy));
  CU(cuModuleUnload(module));
}

const char kManagedPtx[] = R"(
.version 7.0
.target sm_52
.address_size 64
.visible .global .attribute(.managed) .align 4 .b32 count = 5;
.visible .entry increment()
{
  .reg .b32 %r<3>;
  ld.global.u32 %r1, [count];
  add.s32 %r2, %r1, 1;
  st.global.u32 [count], %r2;
  ret;
}
)";

// Each library has its own variable. After each load, the variable has its initial value, at any
// address. It ends with the library.
void managed_variables() {
  for (int round = 0; round < 4; ++round) {
    CUlibrary library;
    CUkernel kernel;
    CUdeviceptr address;
    size_t size;
    CU(cuLibraryLoadData(&library, kManagedPtx, nullptr, nullptr, 0, nullptr, nullptr, 0));
    CU(cuLibraryGetManaged(&address, &size, library, "count"));
    CU(cuLibraryGetKernel(&kernel, library, "increment"));
    CHECK(size == 4);
    auto* count = reinterpret_cast<int*>(address);
    CHECK(*count == 5);
    *count = 10 * round;
    CU(cuLaunchKernel(reinterpret_cast<CUfunction>(kernel), 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr,
                      nullptr));
    CU(cuCtxSynchronize());
    CHECK(*count == 10 * round + 1);

    // The attributes of a pointer to the variable.
    unsigned managed = 0;
    void* host = nullptr;
    CUdeviceptr base;
    CU(cuLibraryGetGlobal(&base, &size, library, "count"));
    CHECK(base == address);
    CU(cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, address));
    CU(cuPointerGetAttribute(&host, CU_POINTER_ATTRIBUTE_HOST_POINTER, address));
    CHECK(managed == 1 && host == count);

    // Work and waits still work after the end of the variable.
    CU(cuLibraryUnload(library));
    CUdeviceptr memory;
    CU(cuCtxSynchronize());
    CU(cuMemAlloc(&memory, 1 << 20));
    CU(cuMemsetD8(memory, 1, 1 << 20));
    CU(cuCtxSynchronize());
    CU(cuMemFree(memory));
  }
  std::printf("managed variables\n");
}

void broken_modules() {
  CUmodule module;
  EXPECT(CUDA_ERROR_INVALID_PTX,
         cuModuleLoadData(&module, ".version 7.0\n.target sm_52\n.entry broken( {"));
  EXPECT(CUDA_ERROR_INVALID_IMAGE, cuModuleLoadData(&module, "neither this nor that"));
  EXPECT(CUDA_ERROR_FILE_NOT_FOUND, cuModuleLoad(&module, "/no/such/file"));
}

void file_module(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> image{std::istreambuf_iterator<char>(file), {}};
  CHECK(!image.empty());
  CUlibrary library;
  CU(cuLibraryLoadData(&library, image.data(), nullptr, nullptr, 0, nullptr, nullptr, 0));
  CUkernel kernel;
  CU(cuLibraryGetKernel(&kernel, library, "no_parameters"));
  CU(cuLaunchKernel(reinterpret_cast<CUfunction>(kernel), 2, 1, 1, 32, 1, 1, 0, nullptr, nullptr,
                    nullptr));
  CU(cuLibraryGetKernel(&kernel, library, "large"));
  CUdeviceptr out;
  CU(cuMemAlloc(&out, 16));
  std::vector<char> large(5000);
  for (int i = 0; i < 5000; ++i) large[i] = static_cast<char>(i % 101);
  for (int index : {0, 77, 4999}) {
    void* parameters[] = {&out, large.data(), &index};
    CU(cuLaunchKernel(reinterpret_cast<CUfunction>(kernel), 1, 1, 1, 1, 1, 1, 0, nullptr,
                      parameters, nullptr));
    char seen = 0;
    CU(cuMemcpyDtoH(&seen, out, 1));
    CHECK(seen == large[index]);
    std::printf("large[%d] = %d\n", index, seen);
  }
  unsigned kernels = 0;
  CU(cuLibraryGetKernelCount(&kernels, library));
  CHECK(kernels == 3);
  CU(cuMemFree(out));
  CU(cuLibraryUnload(library));
  CUmodule module;
  CU(cuModuleLoad(&module, path.c_str()));
  CU(cuModuleUnload(module));
}

void waits_and_writes(CUdevice device) {
  (void)device;
  CUdeviceptr word;
  CU(cuMemAlloc(&word, 8));
  CU(cuMemsetD32(word, 0, 2));
  CU(cuCtxSynchronize());  // non-blocking streams do not wait for the default stream
  CUstream waiter, writer;
  CU(cuStreamCreate(&waiter, CU_STREAM_NON_BLOCKING));
  CU(cuStreamCreate(&writer, CU_STREAM_NON_BLOCKING));
  CU(cuStreamWaitValue32(waiter, word, 3, CU_STREAM_WAIT_VALUE_GEQ));
  CU(cuStreamWriteValue32(waiter, word + 4, 9, CU_STREAM_WRITE_VALUE_DEFAULT));
  CHECK(cuStreamQuery(waiter) == CUDA_ERROR_NOT_READY);
  CU(cuStreamWriteValue32(writer, word, 5, CU_STREAM_WRITE_VALUE_DEFAULT));
  CU(cuStreamSynchronize(waiter));
  unsigned values[2];
  CU(cuMemcpyDtoH(values, word, sizeof values));
  CHECK(values[0] == 5 && values[1] == 9);
  // A word in host memory, which the host reads after a wait for the stream.
  unsigned* host;
  CU(cuMemHostAlloc(reinterpret_cast<void**>(&host), 8, CU_MEMHOSTALLOC_PORTABLE));
  host[0] = host[1] = 0;
  CU(cuStreamWriteValue32(writer, reinterpret_cast<CUdeviceptr>(host), 7,
                          CU_STREAM_WRITE_VALUE_DEFAULT));
  CU(cuStreamSynchronize(writer));
  CHECK(host[0] == 7 && host[1] == 0);
  CUstreamBatchMemOpParams batch = {};
  batch.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  batch.writeValue.address = reinterpret_cast<CUdeviceptr>(host + 1);
  batch.writeValue.value = 8;
  CU(cuStreamBatchMemOp(writer, 1, &batch, 0));
  CU(cuStreamSynchronize(writer));
  CHECK(host[0] == 7 && host[1] == 8);
  CU(cuMemFreeHost(host));
  CU(cuStreamDestroy(waiter));
  CU(cuStreamDestroy(writer));
  CU(cuMemFree(word));
  std::printf("waited\n");
}

}  // namespace

int main(int, char** argv) {
  CUdevice device;
  EXPECT(CUDA_ERROR_NOT_INITIALIZED, cuDeviceGet(&device, 0));
  EXPECT(CUDA_ERROR_NOT_INITIALIZED, cuMemAllocManaged(nullptr, 16, CU_MEM_ATTACH_GLOBAL));
  EXPECT(CUDA_ERROR_NOT_INITIALIZED,
         cuMemcpyBatchAsync(nullptr, nullptr, nullptr, 0, nullptr, nullptr, 0, nullptr));
  EXPECT(CUDA_ERROR_NOT_INITIALIZED, cuMemcpy3DBatchAsync(0, nullptr, 0, nullptr));
  CU(cuInit(0));
  CU(cuDeviceGet(&device, 0));
  EXPECT(CUDA_ERROR_INVALID_DEVICE, cuDeviceGet(&device, 1000));
  CU(cuDeviceGet(&device, 0));
  CUdeviceptr pointer;
  EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuMemAlloc(&pointer, 16));

  CUcontext primary, context, current;
  CU(cuDevicePrimaryCtxRetain(&primary, device));
  CU(cuCtxSetCurrent(primary));
  text_module();
  broken_modules();
  file_module(folder_of_this_program(argv[0]) + "/driver_api.fatbin");
  waits_and_writes(device);
  managed_variables();

  // A created context on top of the primary context.
  CU(cuCtxCreate_v4(&context, nullptr, 0, device));
  CU(cuCtxGetCurrent(&current));
  CHECK(current == context);
  text_module();
  CU(cuCtxPopCurrent(&current));
  CHECK(current == context);
  CU(cuCtxGetCurrent(&current));
  CHECK(current == primary);
  CU(cuCtxDestroy(context));
  CU(cuDevicePrimaryCtxRelease(device));
  std::printf("done\n");
}
