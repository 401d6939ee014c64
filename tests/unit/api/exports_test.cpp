// The generated export layer, in a small shared library that defines five functions itself.
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <cuda.h>
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "api/driver_table.h"

namespace {

using GetProcAddress = decltype(&cuGetProcAddress_v2);

class ExportsTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    ASSERT_TRUE(rcuda::api::load(&table, RCUDA_TEST_DRIVER).ok());
    library = dlopen(RCUDA_TEST_DRIVER, RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(library, nullptr);
  }

  static void* find(const char* name, int version, cuuint64_t flags = 0) {
    void* function = nullptr;
    CUdriverProcAddressQueryResult status{};
    EXPECT_EQ(table.cuGetProcAddress_v2(name, &function, version, flags, &status), CUDA_SUCCESS);
    EXPECT_EQ(function != nullptr, status == CU_GET_PROC_ADDRESS_SUCCESS);
    return function;
  }

  static inline rcuda::api::DriverTable table;
  static inline void* library = nullptr;
};

// Symbols of the toolkit's stub that a library lacks.
std::vector<std::string> missing_symbols(void* library) {
  std::ifstream map(RCUDA_TEST_EXPORTS_MAP);
  std::string line;
  std::vector<std::string> missing;
  int symbols = 0;
  while (std::getline(map, line)) {
    if (line.rfind("    cu", 0) != 0) continue;
    const std::string symbol = line.substr(4, line.size() - 5);
    if (dlsym(library, symbol.c_str()) == nullptr) missing.push_back(symbol);
    ++symbols;
  }
  EXPECT_GE(symbols, 600);
  return missing;
}

TEST_F(ExportsTest, ExportsEverySymbolOfTheToolkitsStub) {
  EXPECT_THAT(missing_symbols(library), testing::IsEmpty());
}

// The two libraries of this repository that export the driver API, as delivered.
class DeliveredLibraryTest : public testing::TestWithParam<const char*> {};

TEST_P(DeliveredLibraryTest, ExportsEverySymbolOfTheToolkitsStub) {
  void* delivered = dlopen(GetParam(), RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(delivered, nullptr) << dlerror();
  EXPECT_THAT(missing_symbols(delivered), testing::IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(All, DeliveredLibraryTest,
                         testing::Values(RCUDA_TEST_CLIENT, RCUDA_TEST_SOFTGPU),
                         [](const auto& info) { return info.index == 0 ? "Client" : "Softgpu"; });

TEST_F(ExportsTest, ExportsNothingElse) {
  EXPECT_EQ(dlsym(library, "_ZN5rcuda3api11unsupportedEm"), nullptr);
  EXPECT_EQ(dlsym(library, "kProcTable"), nullptr);
}

TEST_F(ExportsTest, UnsupportedFunctionsSaySo) {
  CUdeviceptr address = 0;
  EXPECT_EQ(table.cuMemAlloc_v2(&address, 16), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(table.cuMemAlloc_v2(&address, 16), CUDA_ERROR_NOT_SUPPORTED);
}

TEST_F(ExportsTest, OldVersionsForwardToTheCurrentOne) {
  EXPECT_EQ(table.cuEventDestroy(nullptr), CUDA_ERROR_CONTEXT_IS_DESTROYED);
}

TEST_F(ExportsTest, OldVersionsWith32BitPointersDoNot) {
  EXPECT_EQ(table.cuMemAlloc(nullptr, 4), CUDA_ERROR_NOT_SUPPORTED);
}

TEST_F(ExportsTest, PerThreadVariantsPassThePerThreadStream) {
  CUcontext seen = nullptr;
  EXPECT_EQ(table.cuStreamSynchronize_ptsz(nullptr), CUDA_SUCCESS);
  table.cuCtxGetCurrent(&seen);
  EXPECT_EQ(reinterpret_cast<CUstream>(seen), CU_STREAM_PER_THREAD);

  CUstream other = reinterpret_cast<CUstream>(0x1000);
  EXPECT_EQ(table.cuStreamSynchronize_ptsz(other), CUDA_SUCCESS);
  table.cuCtxGetCurrent(&seen);
  EXPECT_EQ(reinterpret_cast<CUstream>(seen), other);
}

TEST_F(ExportsTest, PerThreadVariantsReplaceTheStreamOfALaunchConfig) {
  CUlaunchConfig config{};
  CUcontext seen = nullptr;
  EXPECT_EQ(table.cuLaunchKernelEx_ptsz(&config, nullptr, nullptr, nullptr), CUDA_SUCCESS);
  table.cuCtxGetCurrent(&seen);
  EXPECT_EQ(reinterpret_cast<CUstream>(seen), CU_STREAM_PER_THREAD);
  EXPECT_EQ(config.hStream, nullptr);
  EXPECT_EQ(table.cuLaunchKernelEx_ptsz(nullptr, nullptr, nullptr, nullptr),
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(ExportsTest, FunctionsWithoutStreamParameterOpenTheScope) {
  EXPECT_EQ(table.cuMemcpy(0, 0, 0), CUDA_SUCCESS);
  EXPECT_EQ(table.cuMemcpy_ptds(0, 0, 0), CUDA_ERROR_ALREADY_MAPPED);
  EXPECT_EQ(table.cuMemcpy(0, 0, 0), CUDA_SUCCESS);
}

TEST_F(ExportsTest, VersionSelectsTheSymbol) {
  EXPECT_EQ(find("cuMemAlloc", 2000), reinterpret_cast<void*>(table.cuMemAlloc));
  EXPECT_EQ(find("cuMemAlloc", 3010), reinterpret_cast<void*>(table.cuMemAlloc));
  EXPECT_EQ(find("cuMemAlloc", 3020), reinterpret_cast<void*>(table.cuMemAlloc_v2));
  EXPECT_EQ(find("cuMemAlloc", 13000), reinterpret_cast<void*>(table.cuMemAlloc_v2));
  EXPECT_EQ(find("cuMemAlloc", 99000), reinterpret_cast<void*>(table.cuMemAlloc_v2));
  EXPECT_EQ(find("cuDevicePrimaryCtxRelease", 7000),
            reinterpret_cast<void*>(table.cuDevicePrimaryCtxRelease));
  EXPECT_EQ(find("cuDevicePrimaryCtxRelease", 11000),
            reinterpret_cast<void*>(table.cuDevicePrimaryCtxRelease_v2));
  EXPECT_EQ(find("cuCtxCreate", 11040), reinterpret_cast<void*>(table.cuCtxCreate_v3));
  EXPECT_EQ(find("cuStreamGetCaptureInfo", 11030),
            reinterpret_cast<void*>(table.cuStreamGetCaptureInfo_v2));
  EXPECT_EQ(find("cuStreamGetCaptureInfo", 12030),
            reinterpret_cast<void*>(table.cuStreamGetCaptureInfo_v3));
  EXPECT_EQ(find("cuProfilerStart", 4000), reinterpret_cast<void*>(table.cuProfilerStart));
}

TEST_F(ExportsTest, PerThreadFlagSelectsTheVariantWhereThereIsOne) {
  constexpr cuuint64_t kPerThread = CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
  EXPECT_EQ(find("cuLaunchKernel", 13000, kPerThread),
            reinterpret_cast<void*>(table.cuLaunchKernel_ptsz));
  EXPECT_EQ(find("cuMemcpyHtoD", 13000, kPerThread),
            reinterpret_cast<void*>(table.cuMemcpyHtoD_v2_ptds));
  EXPECT_EQ(find("cuMemAlloc", 13000, kPerThread), reinterpret_cast<void*>(table.cuMemAlloc_v2));
}

TEST_F(ExportsTest, FindsWhatTheRuntimeAsksFor) {
  std::ifstream requests(RCUDA_TEST_CUDART_REQUESTS);
  std::string line;
  int found = 0;
  while (std::getline(requests, line)) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream words(line);
    std::string name;
    int version = 0;
    cuuint64_t flags = 0;
    words >> name >> version >> flags;
    EXPECT_NE(find(name.c_str(), version, flags), nullptr) << line;
    ++found;
  }
  EXPECT_GT(found, 400);
}

TEST_F(ExportsTest, SaysWhyALookupFails) {
  void* function = &function;
  CUdriverProcAddressQueryResult status{};
  EXPECT_EQ(table.cuGetProcAddress_v2("", &function, 13000, 0, &status), CUDA_SUCCESS);
  EXPECT_EQ(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
  EXPECT_EQ(function, nullptr);
  EXPECT_EQ(table.cuGetProcAddress_v2("cuLibraryLoadData", &function, 11080, 0, &status),
            CUDA_SUCCESS);
  EXPECT_EQ(status, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
  function = &function;
  EXPECT_EQ(table.cuGetProcAddress_v2("cuMemAlloc_v2", &function, 13000, 0, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(function, nullptr);
  EXPECT_EQ(table.cuGetProcAddress("cuNoSuchThing", &function, 13000, 0), CUDA_ERROR_NOT_FOUND);
  EXPECT_EQ(table.cuGetProcAddress_v2(nullptr, &function, 13000, 0, &status),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(table.cuGetProcAddress_v2("cuInit", nullptr, 13000, 0, &status),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(table.cuGetProcAddress_v2("cuInit", &function, 13000, 8, &status),
            CUDA_ERROR_INVALID_VALUE);
}

TEST(DriverTableTest, LoadExplainsItself) {
  rcuda::api::DriverTable table;
  const rcuda::Status missing = rcuda::api::load(&table, "/nonexistent/libcuda.so.1");
  EXPECT_EQ(missing.code(), rcuda::Code::kNotFound);
  const rcuda::Status other = rcuda::api::load(&table, "libm.so.6");
  EXPECT_EQ(other.code(), rcuda::Code::kUnsupported);
  EXPECT_EQ(table.cuInit, nullptr);
}

}  // namespace
