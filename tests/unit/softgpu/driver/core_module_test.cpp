#include <cstring>
#include <fstream>
#include <set>
#include <string>
#include <thread>

#include <unistd.h>

#include "tests/support/short_images.h"
#include "tests/unit/softgpu/driver/core_fixture.h"

namespace softgpu::driver {
namespace {

constexpr char kPtx[] = R"(
.version 7.0
.target sm_70
.address_size 64
.visible .global .align 4 .u32 counter = 41;
.visible .const .align 8 .u64 table[3] = {7, 8, 9};
.visible .global .attribute(.managed) .align 4 .u32 shared_word = 5;

.visible .entry increment() {
  .reg .b64 %a;
  .reg .b32 %v;
  mov.u64 %a, counter;
  ld.global.u32 %v, [%a];
  add.u32 %v, %v, 1;
  st.global.u32 [%a], %v;
  mov.u64 %a, shared_word;
  ld.global.u32 %v, [%a];
  add.u32 %v, %v, 10;
  st.global.u32 [%a], %v;
  ret;
}

.visible .entry other(.param .u64 p) { ret; }
)";

// Two units: the first calls a function that the second defines.
constexpr char kCaller[] = R"(
.version 7.0
.target sm_70
.address_size 64
.extern .func (.param .b32 result) twice (.param .b32 value);
.visible .entry call(.param .u64 p) {
  .reg .b64 %a;
  .reg .b32 %v;
  ld.param.u64 %a, [p];
  ld.global.u32 %v, [%a];
  { .param .b32 in; .param .b32 out;
    st.param.b32 [in], %v;
    call (out), twice, (in);
    ld.param.b32 %v, [out]; }
  st.global.u32 [%a], %v;
  ret;
}
)";
constexpr char kCallee[] = R"(
.version 7.0
.target sm_70
.address_size 64
.visible .func (.param .b32 result) twice (.param .b32 value) {
  .reg .b32 %v;
  ld.param.b32 %v, [value];
  add.u32 %v, %v, %v;
  st.param.b32 [result], %v;
  ret;
}
)";

class ModuleTest : public CoreTest {
 protected:
  static CUresult launch(CUfunction function, std::vector<void*> parameters = {}) {
    return cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters.data(), nullptr);
  }
  static uint32_t word_at(CUdeviceptr address) {
    uint32_t word = 0;
    EXPECT_EQ(cuMemcpyDtoH_v2(&word, address, sizeof word), CUDA_SUCCESS);
    return word;
  }
};

TEST_F(ModuleTest, FindsFunctionsAndGlobals) {
  CUmodule module = nullptr;
  CUDA_OK(cuModuleLoadData(&module, kPtx));
  CUfunction function = nullptr, again = nullptr;
  CUDA_OK(cuModuleGetFunction(&function, module, "increment"));
  CUDA_OK(cuModuleGetFunction(&again, module, "increment"));
  EXPECT_EQ(function, again);
  EXPECT_EQ(cuModuleGetFunction(&again, module, "absent"), CUDA_ERROR_NOT_FOUND);
  EXPECT_EQ(cuModuleGetFunction(&again, nullptr, "increment"), CUDA_ERROR_INVALID_HANDLE);
  CUdeviceptr counter = 0, table = 0;
  size_t bytes = 0;
  CUDA_OK(cuModuleGetGlobal_v2(&counter, &bytes, module, "counter"));
  EXPECT_EQ(bytes, 4u);
  EXPECT_EQ(word_at(counter), 41u);
  CUDA_OK(cuModuleGetGlobal_v2(&table, &bytes, module, "table"));
  EXPECT_EQ(bytes, 24u);
  EXPECT_EQ(word_at(table + 16), 9u);
  EXPECT_EQ(cuModuleGetGlobal_v2(&table, &bytes, module, "absent"), CUDA_ERROR_NOT_FOUND);
  CUDA_OK(launch(function));
  EXPECT_EQ(word_at(counter), 42u);
  unsigned count = 0;
  CUDA_OK(cuModuleGetFunctionCount(&count, module));
  EXPECT_EQ(count, 2u);
  CUfunction functions[2] = {};
  CUDA_OK(cuModuleEnumerateFunctions(functions, 2, module));
  EXPECT_EQ(functions[0], function);
  const char* name = nullptr;
  CUDA_OK(cuFuncGetName(&name, functions[1]));
  EXPECT_STREQ(name, "other");
  CUmodule found = nullptr;
  CUDA_OK(cuFuncGetModule(&found, function));
  EXPECT_EQ(found, module);
  EXPECT_EQ(cuMemFree_v2(counter), CUDA_ERROR_INVALID_VALUE);
  CUdeviceptr managed = 0;
  CUDA_OK(cuModuleGetGlobal_v2(&managed, &bytes, module, "shared_word"));
  EXPECT_EQ(cuMemFree_v2(managed), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(word_at(managed), 15u);
  CUDA_OK(cuModuleUnload(module));
  EXPECT_EQ(cuModuleUnload(module), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(launch(function), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(free_bytes(), kDeviceBytes);
}

TEST_F(ModuleTest, RejectsWhatCannotRun) {
  CUmodule module = nullptr;
  EXPECT_EQ(cuModuleLoadData(&module, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuModuleLoadData(&module, ".version 7.0\n.target sm_70\n.address_size 64\n nonsense"),
            CUDA_ERROR_INVALID_PTX);
  EXPECT_EQ(cuModuleLoad(&module, "/does/not/exist.ptx"), CUDA_ERROR_FILE_NOT_FOUND);
  EXPECT_EQ(cuModuleLoadData(&module, kCaller), CUDA_ERROR_INVALID_PTX);  // unresolved
  alignas(8) char elf[128] = "\177ELF\2\1\1";
  elf[52] = 64;  // e_ehsize
  EXPECT_EQ(cuModuleLoadData(&module, elf), CUDA_ERROR_NO_BINARY_FOR_GPU);
  EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
}

TEST_F(ModuleTest, ErrorsReachTheLogBuffer) {
  char text[512] = "unchanged";
  CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
  void* values[] = {text, reinterpret_cast<void*>(sizeof text)};
  CUmodule module = nullptr;
  EXPECT_EQ(cuModuleLoadDataEx(&module, ".version 7.0\n.target sm_70\n.address_size 64\n{{{", 2,
                               options, values),
            CUDA_ERROR_INVALID_PTX);
  EXPECT_NE(std::string(text).find("line 4"), std::string::npos) << text;
  EXPECT_EQ(reinterpret_cast<uintptr_t>(values[1]), std::strlen(text));
  values[1] = reinterpret_cast<void*>(sizeof text);
  CUDA_OK(cuModuleLoadDataEx(&module, kPtx, 2, options, values));
  EXPECT_STREQ(text, "");
  EXPECT_EQ(values[1], nullptr);
  CUjit_option unknown = static_cast<CUjit_option>(1000);
  EXPECT_EQ(cuModuleLoadDataEx(&module, kPtx, 1, &unknown, values), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(ModuleTest, AnEmptyHeapGivesNothingAndIsNoAllocation) {
  constexpr char kAllocating[] = R"(
.version 7.0
.target sm_70
.address_size 64
.extern .func (.param .b64 result) malloc (.param .b64 bytes);
.visible .entry allocate(.param .u64 p) {
  .reg .b64 %a, %r;
  ld.param.u64 %a, [p];
  { .param .b64 in; .param .b64 out;
    st.param.b64 [in], 64;
    call (out), malloc, (in);
    ld.param.b64 %r, [out]; }
  st.global.u64 [%a], %r;
  ret;
}
)";
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  CUDA_OK(cuModuleLoadData(&module, kAllocating));
  CUDA_OK(cuModuleGetFunction(&function, module, "allocate"));
  CUDA_OK(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 0));
  CUdeviceptr result = allocate(8);
  CUDA_OK(cuMemsetD8_v2(result, 0xff, 8));
  CUDA_OK(launch(function, {&result}));
  EXPECT_EQ(read(result, 8), std::vector<uint8_t>(8, 0));
  for (int i = 0; i < 3; ++i) {
    const CUdeviceptr address = allocate(4096);
    CUDA_OK(cuMemsetD8_v2(address, 1, 4096));
    CUDA_OK(cuMemFree_v2(address));
  }
}

TEST_F(ModuleTest, LoadsFromAFile) {
  const std::string path = testing::TempDir() + "core_module_test.ptx";
  std::ofstream(path) << kPtx;
  CUmodule module = nullptr;
  EXPECT_EQ(cuModuleLoad(&module, path.c_str()), CUDA_SUCCESS);
  CUlibrary library = nullptr;
  EXPECT_EQ(cuLibraryLoadFromFile(&library, path.c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0),
            CUDA_SUCCESS);
  EXPECT_EQ(cuLibraryUnload(library), CUDA_SUCCESS);
  ::unlink(path.c_str());
}

// Sizes in headers are trusted only for an application's own memory.
TEST_F(ModuleTest, ReadsNothingBehindTheEndOfAFile) {
  const std::string path = testing::TempDir() + "core_module_test.image";
  for (std::string image : rcuda::test::short_images()) {
    SCOPED_TRACE(image.size());
    std::ofstream(path, std::ios::binary) << image;
    CUmodule module = nullptr;
    EXPECT_EQ(cuModuleLoad(&module, path.c_str()), CUDA_ERROR_INVALID_IMAGE);
    CUlibrary library = nullptr;
    EXPECT_EQ(
        cuLibraryLoadFromFile(&library, path.c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0),
        CUDA_ERROR_INVALID_IMAGE);
    CUlinkState state = nullptr;
    CUDA_OK(cuLinkCreate_v2(0, nullptr, nullptr, &state));
    for (const CUjitInputType type : {CU_JIT_INPUT_FATBINARY, CU_JIT_INPUT_CUBIN}) {
      EXPECT_EQ(
          cuLinkAddData_v2(state, type, image.data(), image.size(), "data", 0, nullptr, nullptr),
          CUDA_ERROR_INVALID_IMAGE);
      EXPECT_EQ(cuLinkAddFile_v2(state, type, path.c_str(), 0, nullptr, nullptr),
                CUDA_ERROR_INVALID_IMAGE);
    }
    CUDA_OK(cuLinkDestroy(state));
  }
  ::unlink(path.c_str());
}

TEST_F(ModuleTest, AFolderIsNoFile) {
  const std::string path = testing::TempDir();
  CUmodule module = nullptr;
  EXPECT_EQ(cuModuleLoad(&module, path.c_str()), CUDA_ERROR_OUT_OF_MEMORY);
  CUlibrary library = nullptr;
  EXPECT_EQ(cuLibraryLoadFromFile(&library, path.c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0),
            CUDA_ERROR_OUT_OF_MEMORY);
}

TEST_F(ModuleTest, LinksUnits) {
  CUlinkState state = nullptr;
  CUDA_OK(cuLinkCreate_v2(0, nullptr, nullptr, &state));
  CUDA_OK(cuLinkAddData_v2(state, CU_JIT_INPUT_PTX, const_cast<char*>(kCaller), sizeof kCaller,
                           "caller", 0, nullptr, nullptr));
  CUDA_OK(cuLinkAddData_v2(state, CU_JIT_INPUT_PTX, const_cast<char*>(kCallee), sizeof kCallee,
                           "callee", 0, nullptr, nullptr));
  void* image = nullptr;
  size_t bytes = 0;
  CUDA_OK(cuLinkComplete(state, &image, &bytes));
  const std::vector<char> copy(static_cast<char*>(image), static_cast<char*>(image) + bytes);
  CUDA_OK(cuLinkDestroy(state));
  EXPECT_EQ(cuLinkDestroy(state), CUDA_ERROR_INVALID_HANDLE);
  CUmodule module = nullptr;
  CUDA_OK(cuModuleLoadData(&module, copy.data()));
  CUfunction function = nullptr;
  CUDA_OK(cuModuleGetFunction(&function, module, "call"));
  CUdeviceptr word = allocate(4);
  CUDA_OK(cuMemsetD32_v2(word, 21, 1));
  CUDA_OK(launch(function, {&word}));
  EXPECT_EQ(word_at(word), 42u);

  CUDA_OK(cuLinkCreate_v2(0, nullptr, nullptr, &state));
  CUDA_OK(cuLinkComplete(state, &image, &bytes));  // nothing has been added
  CUDA_OK(cuLinkAddData_v2(state, CU_JIT_INPUT_PTX, const_cast<char*>(kCaller), sizeof kCaller,
                           "caller", 0, nullptr, nullptr));
  EXPECT_EQ(cuLinkComplete(state, &image, &bytes), CUDA_ERROR_INVALID_PTX);
  EXPECT_EQ(cuLinkAddData_v2(state, CU_JIT_INPUT_OBJECT, image, 1, "o", 0, nullptr, nullptr),
            CUDA_ERROR_UNKNOWN);
  char object[] =
      "\x7f"
      "ELF";
  EXPECT_EQ(
      cuLinkAddData_v2(state, CU_JIT_INPUT_OBJECT, object, sizeof object, "o", 0, nullptr, nullptr),
      CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(cuLinkAddData_v2(state, CU_JIT_INPUT_PTX, nullptr, 1, "o", 0, nullptr, nullptr),
            CUDA_ERROR_INVALID_VALUE);
  CUDA_OK(cuLinkDestroy(state));
}

TEST_F(ModuleTest, LinksInTheOldWayAndFromFiles) {
  const std::string path = testing::TempDir() + "core_module_test_callee.ptx";
  std::ofstream(path) << kCallee;
  CUlinkState state = nullptr;
  CUDA_OK(cuLinkCreate(0, nullptr, nullptr, &state));
  CUDA_OK(cuLinkAddData(state, CU_JIT_INPUT_PTX, const_cast<char*>(kCaller), sizeof kCaller,
                        "caller", 0, nullptr, nullptr));
  CUDA_OK(cuLinkAddFile_v2(state, CU_JIT_INPUT_PTX, path.c_str(), 0, nullptr, nullptr));
  EXPECT_EQ(cuLinkAddFile(state, CU_JIT_INPUT_PTX, "/does/not/exist", 0, nullptr, nullptr),
            CUDA_ERROR_FILE_NOT_FOUND);
  ::unlink(path.c_str());
  void* image = nullptr;
  CUDA_OK(cuLinkComplete(state, &image, nullptr));
  CUmodule module = nullptr;
  CUDA_OK(cuModuleLoadFatBinary(&module, image));
  CUfunction function = nullptr;
  CUDA_OK(cuModuleGetFunction(&function, module, "call"));
  CUDA_OK(cuFuncLoad(function));
  CUfunctionLoadingState loading{};
  CUDA_OK(cuFuncIsLoaded(&loading, function));
  EXPECT_EQ(loading, CU_FUNCTION_LOADING_STATE_LOADED);
  CUmoduleLoadingMode mode{};
  CUDA_OK(cuModuleGetLoadingMode(&mode));
  EXPECT_EQ(mode, CU_MODULE_LAZY_LOADING);
  CUDA_OK(cuLinkDestroy(state));
  CUDA_OK(cuModuleUnload(module));
}

class LibraryTest : public ModuleTest {
 protected:
  void SetUp() override {
    ModuleTest::SetUp();
    CUDA_OK(cuLibraryLoadData(&library_, kPtx, nullptr, nullptr, 0, nullptr, nullptr, 0));
  }
  void TearDown() override {
    if (library_) {
      EXPECT_EQ(cuLibraryUnload(library_), CUDA_SUCCESS);
    }
    ModuleTest::TearDown();
  }
  CUlibrary library_ = nullptr;
};

TEST_F(LibraryTest, KernelsAreIndependentOfContexts) {
  CUkernel kernel = nullptr, again = nullptr;
  CUDA_OK(cuCtxSetCurrent(nullptr));
  CUDA_OK(cuLibraryGetKernel(&kernel, library_, "increment"));
  CUDA_OK(cuLibraryGetKernel(&again, library_, "increment"));
  EXPECT_EQ(kernel, again);
  EXPECT_EQ(cuLibraryGetKernel(&again, library_, "absent"), CUDA_ERROR_NOT_FOUND);
  unsigned count = 0;
  CUDA_OK(cuLibraryGetKernelCount(&count, library_));
  EXPECT_EQ(count, 2u);
  CUkernel kernels[2] = {};
  CUDA_OK(cuLibraryEnumerateKernels(kernels, 2, library_));
  std::set<std::string> names;
  for (const CUkernel each : kernels) {
    const char* name = nullptr;
    CUDA_OK(cuKernelGetName(&name, each));
    names.insert(name);
  }
  EXPECT_EQ(names, (std::set<std::string>{"increment", "other"}));
  CUlibrary found = nullptr;
  CUDA_OK(cuKernelGetLibrary(&found, kernel));
  EXPECT_EQ(found, library_);
  CUdeviceptr address = 0;
  EXPECT_EQ(cuLibraryGetGlobal(&address, nullptr, library_, "counter"), CUDA_ERROR_INVALID_CONTEXT);
  CUDA_OK(cuCtxSetCurrent(context_));
}

TEST_F(LibraryTest, EveryContextHasItsOwnGlobals) {
  CUkernel kernel = nullptr;
  CUDA_OK(cuLibraryGetKernel(&kernel, library_, "increment"));
  CUDA_OK(launch(reinterpret_cast<CUfunction>(kernel)));  // as cudart does
  CUdeviceptr here = 0, there = 0, managed_here = 0, managed_there = 0;
  CUDA_OK(cuLibraryGetGlobal(&here, nullptr, library_, "counter"));
  CUDA_OK(cuLibraryGetManaged(&managed_here, nullptr, library_, "shared_word"));
  EXPECT_EQ(cuLibraryGetManaged(&managed_there, nullptr, library_, "counter"),
            CUDA_ERROR_NOT_FOUND);
  EXPECT_EQ(word_at(here), 42u);
  EXPECT_EQ(word_at(managed_here), 15u);

  CUcontext other = nullptr;
  CUDA_OK(cuCtxCreate_v2(&other, 0, 1));
  CUfunction function = nullptr;
  CUDA_OK(cuKernelGetFunction(&function, kernel));
  CUDA_OK(launch(function));
  CUDA_OK(cuLibraryGetGlobal(&there, nullptr, library_, "counter"));
  CUDA_OK(cuLibraryGetManaged(&managed_there, nullptr, library_, "shared_word"));
  EXPECT_NE(here, there);
  EXPECT_EQ(word_at(there), 42u);
  EXPECT_EQ(managed_there, managed_here);
  EXPECT_EQ(word_at(managed_here), 25u);  // incremented by both
  CUmodule module = nullptr;
  CUDA_OK(cuLibraryGetModule(&module, library_));
  EXPECT_EQ(cuModuleUnload(module), CUDA_ERROR_NOT_PERMITTED);
  CUDA_OK(cuCtxDestroy_v2(other));
  EXPECT_EQ(launch(function), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(word_at(managed_here), 25u);
  CUDA_OK(launch(reinterpret_cast<CUfunction>(kernel)));
  EXPECT_EQ(word_at(here), 43u);
}

TEST_F(LibraryTest, OutlivesAResetOfTheContext) {
  CUkernel kernel = nullptr;
  CUDA_OK(cuLibraryGetKernel(&kernel, library_, "increment"));
  CUDA_OK(launch(reinterpret_cast<CUfunction>(kernel)));
  CUDA_OK(cuDevicePrimaryCtxReset_v2(0));
  CUcontext again = nullptr;
  CUDA_OK(cuDevicePrimaryCtxRetain(&again, 0));
  CUDA_OK(cuDevicePrimaryCtxRelease_v2(0));
  CUDA_OK(launch(reinterpret_cast<CUfunction>(kernel)));
  CUdeviceptr counter = 0;
  CUDA_OK(cuLibraryGetGlobal(&counter, nullptr, library_, "counter"));
  EXPECT_EQ(word_at(counter), 42u);
}

TEST_F(LibraryTest, KernelsHaveAttributesPerDevice) {
  CUkernel kernel = nullptr;
  CUDA_OK(cuLibraryGetKernel(&kernel, library_, "other"));
  int value = -1;
  CUDA_OK(cuKernelGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, kernel, 0));
  EXPECT_EQ(value, 1024);
  CUDA_OK(
      cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 100 << 10, kernel, 0));
  CUDA_OK(cuKernelGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, kernel, 0));
  EXPECT_EQ(value, 100 << 10);
  EXPECT_EQ(
      cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 1 << 20, kernel, 0),
      CUDA_ERROR_INVALID_VALUE);
  CUDA_OK(cuKernelSetCacheConfig(kernel, CU_FUNC_CACHE_PREFER_SHARED, 0));
  size_t offset = 9, bytes = 0;
  CUDA_OK(cuKernelGetParamInfo(kernel, 0, &offset, &bytes));
  EXPECT_EQ(offset, 0u);
  EXPECT_EQ(bytes, 8u);
  EXPECT_EQ(cuKernelGetParamInfo(kernel, 1, &offset, &bytes), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuKernelGetAttribute(&value, CU_FUNC_ATTRIBUTE_NUM_REGS, kernel, 99),
            CUDA_ERROR_INVALID_DEVICE);
  void* unified = nullptr;
  EXPECT_EQ(cuLibraryGetUnifiedFunction(&unified, library_, "absent"), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(LibraryTest, UnloadInvalidatesItsHandles) {
  CUkernel kernel = nullptr;
  CUDA_OK(cuLibraryGetKernel(&kernel, library_, "increment"));
  CUDA_OK(launch(reinterpret_cast<CUfunction>(kernel)));
  CUDA_OK(cuCtxSynchronize());
  CUDA_OK(cuLibraryUnload(library_));
  EXPECT_EQ(launch(reinterpret_cast<CUfunction>(kernel)), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuLibraryGetKernel(&kernel, library_, "increment"), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(free_bytes(), kDeviceBytes);
  library_ = nullptr;
}

TEST_F(LibraryTest, ThreadsLoadItAtOnce) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([this] {
      ASSERT_EQ(cuCtxSetCurrent(context_), CUDA_SUCCESS);
      CUkernel kernel = nullptr;
      ASSERT_EQ(cuLibraryGetKernel(&kernel, library_, "other"), CUDA_SUCCESS);
      CUdeviceptr parameter = 0;
      ASSERT_EQ(launch(reinterpret_cast<CUfunction>(kernel), {&parameter}), CUDA_SUCCESS);
      CUmodule module = nullptr;
      ASSERT_EQ(cuModuleLoadData(&module, kPtx), CUDA_SUCCESS);
      ASSERT_EQ(cuModuleUnload(module), CUDA_SUCCESS);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace softgpu::driver
