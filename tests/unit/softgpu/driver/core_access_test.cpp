// The memory that kernels may touch: allocated memory of their device, and memory to which access
// was given.
#include "tests/unit/softgpu/driver/core_fixture.h"

namespace softgpu::driver {
namespace {

constexpr char kPtx[] = R"(
.version 7.0
.target sm_70
.address_size 64
.visible .entry store(.param .u64 p) {
  .reg .b64 %a;
  .reg .b32 %v;
  ld.param.u64 %a, [p];
  mov.u32 %v, 77;
  st.global.u32 [%a], %v;
  ret;
}
.visible .entry load(.param .u64 p) {
  .reg .b64 %a;
  .reg .b32 %v;
  ld.param.u64 %a, [p];
  ld.volatile.global.u32 %v, [%a];
  ret;
}
)";

// Each test has its own context, because some tests break it.
class AccessTest : public CoreTest {
 protected:
  void SetUp() override {
    CoreTest::SetUp();
    use_context_on(0);
  }
  void TearDown() override {
    for (CUcontext context : contexts_) EXPECT_EQ(cuCtxDestroy_v2(context), CUDA_SUCCESS);
    CoreTest::TearDown();
  }

  CUcontext use_context_on(int device) {
    CUcontext context = nullptr;
    EXPECT_EQ(cuCtxCreate_v2(&context, 0, device), CUDA_SUCCESS);
    contexts_.push_back(context);
    CUmodule module = nullptr;
    EXPECT_EQ(cuModuleLoadData(&module, kPtx), CUDA_SUCCESS);
    EXPECT_EQ(cuModuleGetFunction(&store_, module, "store"), CUDA_SUCCESS);
    EXPECT_EQ(cuModuleGetFunction(&load_, module, "load"), CUDA_SUCCESS);
    return context;
  }
  static CUresult run(CUfunction function, CUdeviceptr address) {
    void* parameters[] = {&address};
    if (CUresult result =
            cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr)) {
      return result;
    }
    return cuCtxSynchronize();
  }

  std::vector<CUcontext> contexts_;
  CUfunction store_ = nullptr, load_ = nullptr;
};

TEST_F(AccessTest, FreedMemoryIsIllegalAndSticks) {
  const CUdeviceptr address = allocate(4096);
  EXPECT_EQ(run(store_, address), CUDA_SUCCESS);
  CUDA_OK(cuMemFree_v2(address));
  EXPECT_EQ(run(store_, address), CUDA_ERROR_ILLEGAL_ADDRESS);
  CUdeviceptr other = 0;
  EXPECT_EQ(cuMemAlloc_v2(&other, 16), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(cuMemsetD8_v2(address, 0, 1), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
  // Another context of the device still works.
  use_context_on(0);
  EXPECT_EQ(run(store_, allocate(16)), CUDA_SUCCESS);
}

TEST_F(AccessTest, AccessEndsAtTheAllocation) {
  const CUdeviceptr address = allocate(4096);
  EXPECT_EQ(run(store_, address + 4092), CUDA_SUCCESS);
  EXPECT_EQ(run(store_, address + 4096), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_F(AccessTest, PlainHostMemoryIsIllegal) {
  static uint32_t word;
  EXPECT_EQ(run(load_, reinterpret_cast<CUdeviceptr>(&word)), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_F(AccessTest, PinnedMemoryIsLegalOnEveryDevice) {
  void* host = nullptr;
  CUDA_OK(cuMemHostAlloc(&host, 4096, 0));
  const auto address = reinterpret_cast<CUdeviceptr>(host);
  use_context_on(1);
  EXPECT_EQ(run(store_, address), CUDA_SUCCESS);
  EXPECT_EQ(*static_cast<uint32_t*>(host), 77u);
}

TEST_F(AccessTest, ReadOnlyRegistrationsCannotBeWritten) {
  static uint32_t words[1024];
  CUDA_OK(cuMemHostRegister_v2(words, sizeof words, CU_MEMHOSTREGISTER_READ_ONLY));
  const auto address = reinterpret_cast<CUdeviceptr>(words);
  EXPECT_EQ(run(load_, address), CUDA_SUCCESS);
  EXPECT_EQ(run(store_, address), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_F(AccessTest, PeerMemoryNeedsAccess) {
  const CUcontext first = contexts_[0];
  const CUdeviceptr before = allocate(4096);
  const CUcontext second = use_context_on(1);
  CUDA_OK(cuCtxEnablePeerAccess(first, 0));
  EXPECT_EQ(run(store_, before), CUDA_SUCCESS);
  CUDA_OK(cuCtxPushCurrent_v2(first));
  const CUdeviceptr after = allocate(4096);
  CUDA_OK(cuCtxPopCurrent_v2(nullptr));
  EXPECT_EQ(run(store_, after), CUDA_SUCCESS);
  CUDA_OK(cuCtxDisablePeerAccess(first));
  unsigned access = 9;
  EXPECT_EQ(cuPointerGetAttribute(&access, CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, before),
            CUDA_SUCCESS);
  EXPECT_EQ(access, unsigned{CU_POINTER_ATTRIBUTE_ACCESS_FLAG_NONE});
  EXPECT_EQ(run(load_, before), CUDA_ERROR_ILLEGAL_ADDRESS);
  // The owner still has access.
  CUDA_OK(cuCtxPushCurrent_v2(first));
  EXPECT_EQ(cuMemsetD8_v2(before, 0, 4096), CUDA_SUCCESS);
  CUDA_OK(cuCtxPopCurrent_v2(nullptr));
  static_cast<void>(second);
}

TEST_F(AccessTest, MappedMemoryFollowsItsAccess) {
  constexpr size_t kPage = size_t{2} << 20;
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  CUmemGenericAllocationHandle handle = 0;
  CUDA_OK(cuMemCreate(&handle, kPage, &prop, 0));
  CUdeviceptr base = 0;
  CUDA_OK(cuMemAddressReserve(&base, kPage, 0, 0, 0));
  CUDA_OK(cuMemMap(base, kPage, 0, handle, 0));
  CUmemAccessDesc desc{};
  desc.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  desc.flags = CU_MEM_ACCESS_FLAGS_PROT_READ;
  CUDA_OK(cuMemSetAccess(base, kPage, &desc, 1));
  EXPECT_EQ(run(load_, base + 8), CUDA_SUCCESS);
  EXPECT_EQ(cuMemsetD8_v2(base, 0, 8), CUDA_ERROR_INVALID_VALUE);
  desc.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  CUDA_OK(cuMemSetAccess(base, kPage, &desc, 1));
  EXPECT_EQ(run(store_, base + 8), CUDA_SUCCESS);
  use_context_on(1);
  EXPECT_EQ(run(load_, base), CUDA_ERROR_ILLEGAL_ADDRESS);
  use_context_on(1);
  desc.location.id = 1;
  desc.flags = CU_MEM_ACCESS_FLAGS_PROT_READ;
  CUDA_OK(cuMemSetAccess(base, kPage, &desc, 1));
  // Only the other device may write.
  EXPECT_EQ(cuMemsetD8_v2(base, 0, 8), CUDA_ERROR_INVALID_VALUE);
  desc.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  CUDA_OK(cuMemSetAccess(base, kPage, &desc, 1));
  EXPECT_EQ(run(store_, base), CUDA_SUCCESS);
  CUDA_OK(cuMemUnmap(base, kPage));
  EXPECT_EQ(run(load_, base), CUDA_ERROR_ILLEGAL_ADDRESS);
  CUDA_OK(cuMemRelease(handle));
  CUDA_OK(cuMemAddressFree(base, kPage));
}

TEST_F(AccessTest, PoolMemoryIsIllegalOnceItsFreeHasRun) {
  CUdeviceptr address = 0;
  CUDA_OK(cuMemAllocAsync(&address, 4096, nullptr));
  EXPECT_EQ(run(store_, address), CUDA_SUCCESS);
  CUDA_OK(cuMemFreeAsync(address, nullptr));
  EXPECT_EQ(run(store_, address), CUDA_ERROR_ILLEGAL_ADDRESS);
}

}  // namespace
}  // namespace softgpu::driver
