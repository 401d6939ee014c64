#include <thread>

#include <cudaProfiler.h>

#include "tests/unit/softgpu/driver/core_fixture.h"

namespace softgpu::driver {
namespace {

class ContextTest : public CoreTest {};

CUcontext current() {
  CUcontext context = nullptr;
  EXPECT_EQ(cuCtxGetCurrent(&context), CUDA_SUCCESS);
  return context;
}

TEST_F(ContextTest, CreatedContextsAreAStack) {
  CUcontext first = nullptr, second = nullptr;
  CUDA_OK(cuCtxCreate_v2(&first, 0, 0));
  EXPECT_EQ(current(), first);
  CUDA_OK(cuCtxCreate_v2(&second, CU_CTX_SCHED_BLOCKING_SYNC, 1));
  EXPECT_EQ(current(), second);
  CUdevice device = -1;
  EXPECT_EQ(cuCtxGetDevice(&device), CUDA_SUCCESS);
  EXPECT_EQ(device, 1);
  unsigned flags = 0;
  EXPECT_EQ(cuCtxGetFlags(&flags), CUDA_SUCCESS);
  EXPECT_EQ(flags, unsigned{CU_CTX_SCHED_BLOCKING_SYNC});
  CUcontext popped = nullptr;
  EXPECT_EQ(cuCtxPopCurrent_v2(&popped), CUDA_SUCCESS);
  EXPECT_EQ(popped, second);
  EXPECT_EQ(current(), first);
  CUDA_OK(cuCtxPushCurrent_v2(second));
  CUDA_OK(cuCtxDestroy_v2(second));
  EXPECT_EQ(current(), first);
  CUDA_OK(cuCtxDestroy_v2(first));
  EXPECT_EQ(current(), context_);
  EXPECT_EQ(cuCtxDestroy_v2(first), CUDA_ERROR_CONTEXT_IS_DESTROYED);
}

TEST_F(ContextTest, NoContextIsAnError) {
  CUDA_OK(cuCtxSetCurrent(nullptr));
  EXPECT_EQ(current(), nullptr);
  CUdeviceptr address = 0;
  EXPECT_EQ(cuMemAlloc_v2(&address, 16), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_INVALID_CONTEXT);
  CUcontext popped = nullptr;
  EXPECT_EQ(cuCtxPopCurrent_v2(&popped), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(cuCtxSetCurrent(reinterpret_cast<CUcontext>(&popped)), CUDA_ERROR_INVALID_CONTEXT);
}

TEST_F(ContextTest, ADestroyedContextIsNoticedWhereItIsCurrent) {
  CUcontext other = nullptr;
  CUDA_OK(cuCtxCreate_v2(&other, 0, 0));
  std::thread([other] { EXPECT_EQ(cuCtxDestroy_v2(other), CUDA_SUCCESS); }).join();
  CUdeviceptr address = 0;
  EXPECT_EQ(cuMemAlloc_v2(&address, 16), CUDA_ERROR_CONTEXT_IS_DESTROYED);
  EXPECT_EQ(cuCtxPopCurrent_v2(&other), CUDA_SUCCESS);
  EXPECT_EQ(cuMemAlloc_v2(&address, 16), CUDA_SUCCESS);
}

TEST_F(ContextTest, PrimaryContextLivesFromFirstRetainToLastRelease) {
  CUcontext again = nullptr;
  CUDA_OK(cuDevicePrimaryCtxRetain(&again, 0));
  EXPECT_EQ(again, context_);
  CUdeviceptr address = allocate(4096);
  CUDA_OK(cuDevicePrimaryCtxRelease_v2(0));
  EXPECT_EQ(cuMemsetD8_v2(address, 0, 4096), CUDA_SUCCESS);
  CUDA_OK(cuDevicePrimaryCtxRelease_v2(0));
  int active = 1;
  unsigned flags = 9;
  EXPECT_EQ(cuDevicePrimaryCtxGetState(0, &flags, &active), CUDA_SUCCESS);
  EXPECT_EQ(active, 0);
  EXPECT_EQ(flags, 0u);
  EXPECT_EQ(cuMemsetD8_v2(address, 0, 4096), CUDA_ERROR_CONTEXT_IS_DESTROYED);
  EXPECT_EQ(cuDevicePrimaryCtxRelease_v2(0), CUDA_ERROR_INVALID_CONTEXT);
  CUDA_OK(cuDevicePrimaryCtxRetain(&again, 0));
  EXPECT_EQ(again, context_);
  EXPECT_EQ(cuMemFree_v2(address), CUDA_ERROR_INVALID_VALUE);  // destroyed with the context
  EXPECT_EQ(free_bytes(), kDeviceBytes);
  EXPECT_EQ(cuCtxDestroy_v2(context_), CUDA_ERROR_INVALID_CONTEXT);
}

TEST_F(ContextTest, ResetFreesResourcesAndKeepsReferences) {
  allocate(1 << 20);
  CUDA_OK(cuDevicePrimaryCtxReset_v2(0));
  CUdeviceptr address = 0;
  EXPECT_EQ(cuMemAlloc_v2(&address, 16), CUDA_ERROR_CONTEXT_IS_DESTROYED);
  CUcontext again = nullptr;
  CUDA_OK(cuDevicePrimaryCtxRetain(&again, 0));
  EXPECT_EQ(free_bytes(), kDeviceBytes);
  CUDA_OK(cuDevicePrimaryCtxRelease_v2(0));
  EXPECT_EQ(cuMemAlloc_v2(&address, 16), CUDA_SUCCESS);  // the fixture's reference still holds
}

TEST_F(ContextTest, FlagsOfThePrimaryContext) {
  EXPECT_EQ(cuDevicePrimaryCtxSetFlags_v2(1, CU_CTX_SCHED_YIELD), CUDA_SUCCESS);
  unsigned flags = 0;
  int active = 1;
  EXPECT_EQ(cuDevicePrimaryCtxGetState(1, &flags, &active), CUDA_SUCCESS);
  EXPECT_EQ(flags, unsigned{CU_CTX_SCHED_YIELD});
  EXPECT_EQ(active, 0);
  EXPECT_EQ(cuDevicePrimaryCtxSetFlags_v2(1, 0x100000), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuDevicePrimaryCtxSetFlags_v2(1, 0), CUDA_SUCCESS);
  CUcontext made = nullptr;
  EXPECT_EQ(cuCtxCreate_v2(&made, 3, 0), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(ContextTest, LimitsAreKeptPerContext) {
  size_t value = 0;
  EXPECT_EQ(cuCtxGetLimit(&value, CU_LIMIT_STACK_SIZE), CUDA_SUCCESS);
  EXPECT_EQ(value, 1024u);
  EXPECT_EQ(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 5000), CUDA_SUCCESS);
  EXPECT_EQ(cuCtxGetLimit(&value, CU_LIMIT_STACK_SIZE), CUDA_SUCCESS);
  EXPECT_GE(value, 5000u);
  EXPECT_EQ(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 32 << 20), CUDA_SUCCESS);
  EXPECT_EQ(cuCtxGetLimit(&value, CU_LIMIT_MALLOC_HEAP_SIZE), CUDA_SUCCESS);
  EXPECT_EQ(value, size_t{32} << 20);
  EXPECT_EQ(cuCtxSetLimit(CU_LIMIT_MAX_L2_FETCH_GRANULARITY, 129), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuCtxGetLimit(&value, static_cast<CUlimit>(99)), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuCtxGetLimit(&value, CU_LIMIT_CIG_ENABLED), CUDA_SUCCESS);
  EXPECT_EQ(value, 0u);
  EXPECT_EQ(cuCtxSetLimit(CU_LIMIT_CIG_ENABLED, 1), CUDA_ERROR_NOT_PERMITTED);
  EXPECT_EQ(cuCtxGetLimit(&value, CU_LIMIT_SHMEM_SIZE), CUDA_SUCCESS);
  EXPECT_EQ(value, 227u << 10);
  EXPECT_EQ(cuCtxGetLimit(&value, CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH), CUDA_ERROR_UNSUPPORTED_LIMIT);
  CUcontext other = nullptr;
  CUDA_OK(cuCtxCreate_v2(&other, 0, 0));
  EXPECT_EQ(cuCtxGetLimit(&value, CU_LIMIT_STACK_SIZE), CUDA_SUCCESS);
  EXPECT_EQ(value, 1024u);
  CUDA_OK(cuCtxDestroy_v2(other));
}

TEST_F(ContextTest, IdsAreUniqueAndChangeWithTheIncarnation) {
  unsigned long long first = 0, second = 0;
  CUDA_OK(cuCtxGetId(context_, &first));
  CUcontext other = nullptr;
  CUDA_OK(cuCtxCreate_v2(&other, 0, 0));
  CUDA_OK(cuCtxGetId(nullptr, &second));
  EXPECT_NE(first, second);
  unsigned version = 0;
  EXPECT_EQ(cuCtxGetApiVersion(other, &version), CUDA_SUCCESS);
  EXPECT_EQ(version, 3020u);
  CUDA_OK(cuCtxDestroy_v2(other));
  EXPECT_EQ(cuCtxGetApiVersion(other, &version), CUDA_ERROR_INVALID_CONTEXT);
}

TEST_F(ContextTest, CacheConfiguration) {
  CUfunc_cache config{};
  EXPECT_EQ(cuCtxSetCacheConfig(CU_FUNC_CACHE_PREFER_L1), CUDA_SUCCESS);
  EXPECT_EQ(cuCtxGetCacheConfig(&config), CUDA_SUCCESS);
  EXPECT_EQ(config, CU_FUNC_CACHE_PREFER_L1);
  EXPECT_EQ(cuCtxSetCacheConfig(static_cast<CUfunc_cache>(9)), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(ContextTest, OlderAndNewerWaysToMakeOne) {
  CUcontext made = nullptr;
  CUDA_OK(cuCtxCreate_v3(&made, nullptr, 0, 0, 0));
  EXPECT_EQ(cuCtxDestroy_v2(made), CUDA_SUCCESS);
  CUexecAffinityParam affinity{};
  affinity.type = CU_EXEC_AFFINITY_TYPE_SM_COUNT;
  affinity.param.smCount.val = 8;
  EXPECT_EQ(cuCtxCreate_v3(&made, &affinity, 1, 0, 0), CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY);
  CUDA_OK(cuCtxCreate_v4(&made, nullptr, CU_CTX_SCHED_SPIN, 0));
  CUDA_OK(cuCtxGetExecAffinity(&affinity, CU_EXEC_AFFINITY_TYPE_SM_COUNT));
  EXPECT_EQ(affinity.param.smCount.val, 132u);
  unsigned flags = 0;
  CUDA_OK(cuCtxGetFlags(&flags));
  EXPECT_EQ(flags & CU_CTX_SCHED_MASK, unsigned{CU_CTX_SCHED_SPIN});
  CUDA_OK(cuCtxSetFlags(CU_CTX_SCHED_YIELD));
  CUDA_OK(cuCtxGetFlags(&flags));
  EXPECT_EQ(flags & CU_CTX_SCHED_MASK, unsigned{CU_CTX_SCHED_YIELD});
  EXPECT_EQ(cuCtxSetFlags(0x100000), CUDA_ERROR_INVALID_VALUE);
  CUdevice device = -1;
  CUDA_OK(cuCtxGetDevice_v2(&device, made));
  EXPECT_EQ(device, 0);
  CUDA_OK(cuCtxSynchronize_v2(made));
  CUDA_OK(cuCtxSynchronize_v2(nullptr));
  EXPECT_EQ(cuCtxDestroy_v2(made), CUDA_SUCCESS);
  EXPECT_EQ(cuCtxSynchronize_v2(made), CUDA_ERROR_CONTEXT_IS_DESTROYED);
}

TEST_F(ContextTest, SettingsWithoutEffect) {
  CUDA_OK(cuCtxSetSharedMemConfig(CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE));
  CUsharedconfig config{};
  CUDA_OK(cuCtxGetSharedMemConfig(&config));
  EXPECT_EQ(config, CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE);  // the only value since sm_50
  EXPECT_EQ(cuCtxSetSharedMemConfig(static_cast<CUsharedconfig>(9)), CUDA_ERROR_INVALID_VALUE);
  CUDA_OK(cuCtxResetPersistingL2Cache());
  CUDA_OK(cuProfilerStart());
  CUDA_OK(cuProfilerStop());
}

TEST_F(ContextTest, PeerAccessIsCountedByPairs) {
  CUcontext peer = nullptr;
  CUDA_OK(cuDevicePrimaryCtxRetain(&peer, 1));
  EXPECT_EQ(cuCtxDisablePeerAccess(peer), CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
  EXPECT_EQ(cuCtxEnablePeerAccess(peer, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuCtxEnablePeerAccess(peer, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuCtxEnablePeerAccess(peer, 0), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
  EXPECT_EQ(cuCtxEnablePeerAccess(context_, 0), CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
  EXPECT_EQ(cuCtxDisablePeerAccess(peer), CUDA_SUCCESS);
  EXPECT_EQ(cuCtxEnablePeerAccess(peer, 0), CUDA_SUCCESS);
  CUDA_OK(cuDevicePrimaryCtxRelease_v2(1));
  EXPECT_EQ(cuCtxEnablePeerAccess(peer, 0), CUDA_ERROR_CONTEXT_IS_DESTROYED);
  // When the peer's context is made again, it starts without access.
  CUDA_OK(cuDevicePrimaryCtxRetain(&peer, 1));
  EXPECT_EQ(cuCtxEnablePeerAccess(peer, 0), CUDA_SUCCESS);
  CUDA_OK(cuDevicePrimaryCtxRelease_v2(1));
}

TEST_F(ContextTest, ThreadsUseAndDestroyContextsAtOnce) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      for (int i = 0; i < 20; ++i) {
        CUcontext context = nullptr;
        ASSERT_EQ(cuCtxCreate_v2(&context, 0, t % 2), CUDA_SUCCESS);
        CUdeviceptr address = 0;
        ASSERT_EQ(cuMemAlloc_v2(&address, 100'000), CUDA_SUCCESS);
        ASSERT_EQ(cuMemsetD8_v2(address, 1, 100'000), CUDA_SUCCESS);
        ASSERT_EQ(cuCtxDestroy_v2(context), CUDA_SUCCESS);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(free_bytes(), kDeviceBytes);
}

}  // namespace
}  // namespace softgpu::driver
