#include "tests/generations/registration.h"

#include <cstddef>
#include <cstdlib>

#include <cuda_runtime_api.h>

// The functions that nvcc's own output calls (crt/host_runtime.h). The first four are unchanged
// since CUDA 10.1, the last two since CUDA 9.
extern "C" {
void** __cudaRegisterFatBinary(void* wrapper);
void __cudaRegisterFatBinaryEnd(void** module);
void __cudaUnregisterFatBinary(void** module);
void __cudaRegisterFunction(void** module, const char* stub, char* function, const char* name,
                            int thread_limit, uint3* thread, uint3* block, dim3* block_size,
                            dim3* grid_size, int* warp_size);
void __cudaRegisterVar(void** module, char* shadow, char* address, const char* name, int external,
                       size_t bytes, int constant, int global);
void __cudaRegisterManagedVar(void** module, void** shadow, char* address, const char* name,
                              int external, size_t bytes, int constant, int global);
char __cudaInitModule(void** module);
}

int counter;
float table[256];
float factors[4];
int* managed_value;

// A runtime requires of stubs only that their addresses differ.
#define STUB(name)          \
  void name() {             \
    static volatile int it; \
    it = it + 1;            \
  }
extern "C" {
STUB(scale)
STUB(add)
STUB(count_threads)
STUB(add_to_managed)
STUB(fill_table)
STUB(sum_blocks)
STUB(exchange)
STUB(bounded)
}

namespace {

struct Wrapper {
  int magic;
  int version;
  const void* fatbin;
  void* prelinked;
};

__attribute__((section(".nvFatBinSegment"), used))
Wrapper wrapper = {0x466243b1, 1, kernels_fatbin, nullptr};
void** module;

void kernel(void (*stub)(), const char* name) {
  __cudaRegisterFunction(module, reinterpret_cast<const char*>(stub), const_cast<char*>(name), name,
                         -1, nullptr, nullptr, nullptr, nullptr, nullptr);
}

template <typename T>
void variable(T& shadow, const char* name, bool constant) {
  __cudaRegisterVar(module, reinterpret_cast<char*>(&shadow), const_cast<char*>(name), name, 0,
                    sizeof shadow, constant, 0);
}

void unregister() { __cudaUnregisterFatBinary(module); }

__attribute__((constructor)) void register_kernels() {
  module = __cudaRegisterFatBinary(&wrapper);
  kernel(scale, "scale");
  kernel(add, "add");
  kernel(count_threads, "count_threads");
  kernel(add_to_managed, "add_to_managed");
  kernel(fill_table, "fill_table");
  kernel(sum_blocks, "sum_blocks");
  kernel(exchange, "exchange");
  kernel(bounded, "bounded");
  variable(counter, "counter", false);
  variable(table, "table", false);
  variable(factors, "factors", true);
  __cudaRegisterManagedVar(module, reinterpret_cast<void**>(&managed_value),
                           const_cast<char*>("managed_value"), "managed_value", 0, sizeof(int), 0,
                           0);
  __cudaRegisterFatBinaryEnd(module);
  __cudaInitModule(module);
  std::atexit(unregister);
}

}  // namespace
