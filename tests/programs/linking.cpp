// Linking at run time: a kernel in PTX calls a device function of another input. Inputs come from
// memory and from a file; the linked image outlives the inputs, but not the link state.
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include <cuda.h>
#include <unistd.h>

#include "driver_checks.h"

namespace {

const char kCaller[] = R"(
.version 6.3
.target sm_75
.address_size 64
.extern .func (.param .b32 result) scaled (.param .b32 value);
.visible .entry apply(.param .u64 pointer) {
  .reg .b64 %address;
  .reg .b32 %value;
  ld.param.u64 %address, [pointer];
  cvta.to.global.u64 %address, %address;
  ld.global.u32 %value, [%address];
  {
    .param .b32 value;
    .param .b32 result;
    st.param.b32 [value], %value;
    call.uni (result), scaled, (value);
    ld.param.b32 %value, [result];
  }
  st.global.u32 [%address], %value;
  ret;
}
)";

// A device function that multiplies by `factor`.
std::string callee(int factor) {
  return R"(
.version 6.3
.target sm_75
.address_size 64
.visible .func (.param .b32 result) scaled (.param .b32 value) {
  .reg .b32 %value;
  ld.param.b32 %value, [value];
  mul.lo.s32 %value, %value, )" +
         std::to_string(factor) + R"(;
  st.param.b32 [result], %value;
  ret;
}
)";
}

// The options of a link state, which uses them until it is destroyed.
struct Options {
  char info[2048] = "?", error[2048] = "?";
  CUjit_option keys[5] = {CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES,
                          CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
                          CU_JIT_LOG_VERBOSE};
  void* values[5] = {info, reinterpret_cast<void*>(sizeof info), error,
                     reinterpret_cast<void*>(sizeof error), reinterpret_cast<void*>(1)};
};

void add_text(CUlinkState state, const std::string& text, const char* name) {
  std::vector<char> copy(text.c_str(), text.c_str() + text.size() + 1);
  CU(cuLinkAddData(state, CU_JIT_INPUT_PTX, copy.data(), copy.size(), name, 0, nullptr, nullptr));
  std::memset(copy.data(), 0, copy.size());  // the driver has read it
}

unsigned run(CUmodule module, unsigned value) {
  CUfunction function;
  CUdeviceptr word;
  CU(cuModuleGetFunction(&function, module, "apply"));
  CU(cuMemAlloc(&word, 4));
  CU(cuMemsetD32(word, value, 1));
  void* parameters[] = {&word};
  CU(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr));
  CU(cuMemcpyDtoH(&value, word, 4));
  CU(cuMemFree(word));
  return value;
}

void link_from_memory() {
  Options options;
  CUlinkState state;
  CU(cuLinkCreate(5, options.keys, options.values, &state));
  add_text(state, kCaller, "caller");
  add_text(state, callee(2), "callee");
  void* image = nullptr;
  size_t bytes = 0;
  CU(cuLinkComplete(state, &image, &bytes));
  CHECK(image != nullptr && bytes != 0);
  CHECK(std::strlen(options.error) == 0);
  const std::vector<char> copy(static_cast<char*>(image), static_cast<char*>(image) + bytes);
  CUmodule from_state, from_copy;
  CU(cuModuleLoadData(&from_state, image));
  CU(cuLinkDestroy(state));
  CU(cuModuleLoadData(&from_copy, copy.data()));
  std::printf("memory: %u %u\n", run(from_state, 21), run(from_copy, 50));
  CU(cuModuleUnload(from_state));
  CU(cuModuleUnload(from_copy));
}

void link_from_file() {
  char path[] = "/tmp/linking-XXXXXX";
  const int file = mkstemp(path);
  CHECK(file >= 0);
  const std::string text = callee(3);
  CHECK(write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size()));
  CHECK(close(file) == 0);
  CUlinkState state;
  CU(cuLinkCreate(0, nullptr, nullptr, &state));
  add_text(state, kCaller, "caller");
  EXPECT(CUDA_ERROR_FILE_NOT_FOUND,
         cuLinkAddFile(state, CU_JIT_INPUT_PTX, "/does/not/exist", 0, nullptr, nullptr));
  CU(cuLinkAddFile(state, CU_JIT_INPUT_PTX, path, 0, nullptr, nullptr));
  CHECK(unlink(path) == 0);
  void* image = nullptr;
  size_t bytes = 0;
  CU(cuLinkComplete(state, &image, &bytes));
  CUmodule module;
  CU(cuModuleLoadData(&module, image));
  CU(cuLinkDestroy(state));
  std::printf("file: %u\n", run(module, 7));
  CU(cuModuleUnload(module));
}

// Two states at once, each with its own inputs.
void two_states() {
  CUlinkState states[2];
  CUmodule modules[2];
  for (CUlinkState& state : states) CU(cuLinkCreate(0, nullptr, nullptr, &state));
  for (int i = 0; i < 2; ++i) add_text(states[i], callee(10 + i), "callee");
  for (CUlinkState state : states) add_text(state, kCaller, "caller");
  for (int i = 0; i < 2; ++i) {
    void* image = nullptr;
    size_t bytes = 0;
    CU(cuLinkComplete(states[i], &image, &bytes));
    CU(cuModuleLoadData(&modules[i], image));
  }
  for (CUlinkState state : states) CU(cuLinkDestroy(state));
  std::printf("two states: %u %u\n", run(modules[0], 5), run(modules[1], 5));
}

void text_with_an_error() {
  Options options;
  CUlinkState state;
  CU(cuLinkCreate(5, options.keys, options.values, &state));
  add_text(state, kCaller, "caller");
  char text[] = ".version 6.3\n.target sm_75\n.address_size 64\nthis is not PTX\n";
  EXPECT(CUDA_ERROR_INVALID_PTX,
         cuLinkAddData(state, CU_JIT_INPUT_PTX, text, sizeof text, "text", 0, nullptr, nullptr));
  CHECK(std::strlen(options.error) != 0);
  CU(cuLinkDestroy(state));
  std::printf("text with an error: refused, with a log\n");
}

}  // namespace

int main() {
  CUcontext context;
  CU(cuInit(0));
  CUlinkState state;
  EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuLinkCreate(0, nullptr, nullptr, &state));
  CU(cuDevicePrimaryCtxRetain(&context, 0));
  CU(cuCtxSetCurrent(context));
  link_from_memory();
  link_from_file();
  two_states();
  text_with_an_error();
  CU(cuDevicePrimaryCtxRelease(0));
  return 0;
}
