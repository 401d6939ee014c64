// Loads and unloads modules and libraries and calls their functions. The driver reuses the handles
// of destroyed functions for new functions, which have other parameters and do something else.
#include <cstdio>
#include <cstdlib>
#include <string>

#include <cuda.h>

namespace {

void check(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  std::fprintf(stderr, "%s: CUDA error %d\n", what, result);
  std::exit(1);
}

// PTX of a kernel `name` that adds `amount` to *p. After p it has `unused` parameters without use.
std::string adder(const char* name, int unused, int amount) {
  std::string text = ".version 7.0\n.target sm_75\n.address_size 64\n.visible .entry ";
  text += std::string(name) + "(.param .u64 p";
  for (int i = 0; i < unused; ++i) text += ", .param .u64 unused" + std::to_string(i);
  text +=
      ")\n{\n.reg .u32 %r<3>;\n.reg .u64 %a;\nld.param.u64 %a, [p];\nld.global.u32 %r1, [%a];\n";
  text += "add.u32 %r2, %r1, " + std::to_string(amount) + ";\nst.global.u32 [%a], %r2;\nret;\n}\n";
  return text;
}

void launch(CUfunction function, CUdeviceptr counter) {
  unsigned long long unused = 0;
  void* parameters[16];
  parameters[0] = &counter;
  for (int i = 1; i < 16; ++i) parameters[i] = &unused;
  check(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr),
        "cuLaunchKernel");
}

void by_module(int unused, int amount, CUdeviceptr counter) {
  CUmodule module;
  CUfunction function;
  check(cuModuleLoadData(&module, adder("from_module", unused, amount).c_str()),
        "cuModuleLoadData");
  check(cuModuleGetFunction(&function, module, "from_module"), "cuModuleGetFunction");
  launch(function, counter);
  check(cuModuleUnload(module), "cuModuleUnload");
}

void by_library(int unused, int amount, CUdeviceptr counter) {
  CUlibrary library;
  CUkernel kernel;
  CUfunction function;
  const std::string code = adder("from_library", unused, amount);
  check(cuLibraryLoadData(&library, code.c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0),
        "cuLibraryLoadData");
  check(cuLibraryGetKernel(&kernel, library, "from_library"), "cuLibraryGetKernel");
  check(cuKernelGetFunction(&function, kernel), "cuKernelGetFunction");
  // A module's function that is created while the library exists must not get the id of the
  // library's function.
  CUmodule module;
  CUfunction other;
  check(cuModuleLoadData(&module, adder("beside", unused / 2, 1000).c_str()), "cuModuleLoadData");
  check(cuModuleGetFunction(&other, module, "beside"), "cuModuleGetFunction");
  launch(function, counter);
  launch(other, counter);
  check(cuCtxSynchronize(), "cuCtxSynchronize");
  check(cuModuleUnload(module), "cuModuleUnload");
  check(cuLibraryUnload(library), "cuLibraryUnload");
}

}  // namespace

int main() {
  CUcontext context;
  CUdeviceptr counter;
  check(cuInit(0), "cuInit");
  check(cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
  check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
  check(cuMemAlloc(&counter, 4), "cuMemAlloc");
  check(cuMemsetD32(counter, 0, 1), "cuMemsetD32");
  unsigned expected = 0;
  for (int round = 0; round < 40; ++round) {
    by_module(15 - round % 15, 1, counter);
    by_library(round % 15, 10, counter);
    expected += 1 + 10 + 1000;
  }
  unsigned counted = 0;
  check(cuMemcpyDtoH(&counted, counter, 4), "cuMemcpyDtoH");
  std::printf("counted %u of %u\n", counted, expected);
  return counted == expected ? 0 : 1;
}
