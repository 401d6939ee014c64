// Objects destroyed while work is pending, host functions, sticky errors, handles and attributes.
#include <atomic>
#include <chrono>
#include <string>
#include <thread>

#include "tests/unit/softgpu/driver/stream_fixture.h"

namespace softgpu::driver {
namespace {

using StreamLifetimeTest = StreamFixture;

TEST_F(StreamLifetimeTest, DestroyedStreamFinishesItsWork) {
  const CUstream s = stream();
  CUDA_OK(spin(s, word(0)));
  CUDA_OK(shift(s, word(1), 1));
  CUDA_OK(cuStreamDestroy_v2(s));
  CUDA_OK(shift(nullptr, word(1), 2));  // the default stream still waits for it
  write(0, 1);
  CUDA_OK(cuCtxSynchronize());
  EXPECT_EQ(read(1), shifted(0, {1, 2}));
}

TEST_F(StreamLifetimeTest, DestroyedEventStillHoldsBackWaiters) {
  const CUstream a = stream(), b = stream();
  const CUevent e = event();
  CUDA_OK(spin(a, word(0)));
  CUDA_OK(shift(a, word(1), 1));
  CUDA_OK(cuEventRecord(e, a));
  CUDA_OK(cuStreamWaitEvent(b, e, 0));
  CUDA_OK(cuEventDestroy_v2(e));
  CUDA_OK(shift(b, word(1), 2));
  write(0, 1);
  CUDA_OK(cuCtxSynchronize());
  EXPECT_EQ(read(1), shifted(0, {1, 2}));
}

// softgpu only: NVIDIA's driver does not check destroyed handles.
TEST_F(StreamLifetimeTest, HandlesEndWithTheirObjects) {
  const CUstream s = stream();
  const CUevent e = event();
  CUDA_OK(cuStreamDestroy_v2(s));
  CUDA_OK(cuEventDestroy_v2(e));
  EXPECT_EQ(cuStreamQuery(s), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuStreamDestroy_v2(s), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(empty(s), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuEventQuery(e), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuEventDestroy_v2(e), CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(StreamLifetimeTest, DestroyingTheContextWaitsForWhatRuns) {
  const CUstream a = stream(), b = stream();
  const CUevent e = event();
  CUDA_OK(spin(a, word(0)));
  CUDA_OK(cuEventRecord(e, a));
  CUDA_OK(cuStreamWaitEvent(b, e, 0));
  CUDA_OK(cuStreamWaitValue32_v2(b, word(0), 1, CU_STREAM_WAIT_VALUE_EQ));
  CUDA_OK(spin(nullptr, word(0)));
  std::atomic<bool> written{false};
  in_thread([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    written = true;
    write(0, 1);
  });
  CUDA_OK(cuCtxDestroy_v2(context_));
  EXPECT_TRUE(written);
  join_threads();
  context_ = nullptr;
  EXPECT_EQ(cuStreamQuery(nullptr), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(cuStreamQuery(a), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuEventQuery(e), CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(StreamLifetimeTest, UnloadingALibraryWaitsForWhatRuns) {
  CUlibrary library = nullptr;
  CUkernel kernel = nullptr;
  CUDA_OK(cuLibraryLoadData(&library, kTestPtx, nullptr, nullptr, 0, nullptr, nullptr, 0));
  CUDA_OK(cuLibraryGetKernel(&kernel, library, "spin"));
  CUdeviceptr until_set = word(0);
  CUDA_OK(launch(reinterpret_cast<CUfunction>(kernel), stream(), {&until_set}));
  std::atomic<bool> written{false};
  in_thread([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    written = true;
    write(0, 1);
  });
  CUDA_OK(cuLibraryUnload(library));
  EXPECT_TRUE(written);
}

TEST_F(StreamLifetimeTest, ContextDestructionWaitsForAnotherContextsEvent) {
  const CUstream s = stream();
  const CUevent e = event();
  CUDA_OK(spin(s, word(0)));
  CUDA_OK(cuEventRecord(e, s));
  CUcontext other = nullptr;
  CUDA_OK(cuCtxCreate_v2(&other, 0, device_));
  const CUstream waiting = stream();
  CUDA_OK(cuStreamWaitEvent(waiting, e, 0));
  CUDA_OK(cuMemsetD32Async(word(1), 1, 1, waiting));
  in_thread([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    write(0, 1);
  });
  CUDA_OK(cuCtxDestroy_v2(other));
  EXPECT_EQ(read(1), 1u);
  CUDA_OK(cuCtxSetCurrent(context_));
  CUDA_OK(cuStreamSynchronize(s));
}

TEST_F(StreamLifetimeTest, StreamsComeAndGoFromManyThreads) {
  for (int i = 0; i < 4; ++i) {
    in_thread([this] {
      for (int n = 0; n < 50; ++n) {
        const CUstream s = stream(n % 2 == 0 ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING);
        EXPECT_EQ(add(s, word(0), 1), CUDA_SUCCESS);
        if (n % 3 == 0) {
          EXPECT_EQ(add(nullptr, word(0), 1), CUDA_SUCCESS);
        }
        EXPECT_EQ(cuStreamDestroy_v2(s), CUDA_SUCCESS);
      }
    });
  }
  join_threads();
  CUDA_OK(cuCtxSynchronize());
  EXPECT_EQ(read(0), 4u * (50 + 17));
}

TEST_F(StreamLifetimeTest, HostFunctionHoldsItsStreamAndMayNotCallCuda) {
  struct Shared {
    std::atomic<bool> go{false};
    CUresult calls[5] = {};
    CUcontext context = nullptr;
  } shared;
  shared.context = context_;
  const CUstream s = stream(), other = stream(CU_STREAM_NON_BLOCKING);
  CUDA_OK(cuLaunchHostFunc(
      s,
      [](void* data) {
        auto& state = *static_cast<Shared*>(data);
        while (!state.go) std::this_thread::yield();
        CUdeviceptr memory = 0;
        CUcontext current = nullptr;
        CUevent made = nullptr;
        int count = 0;
        state.calls[0] = cuMemAlloc_v2(&memory, 4);
        state.calls[1] = cuCtxGetCurrent(&current);
        state.calls[2] = cuEventCreate(&made, 0);
        state.calls[3] = cuDeviceGetCount(&count);
        state.calls[4] = cuCtxSetCurrent(state.context);
      },
      &shared));
  CUDA_OK(set(s, word(0), 1));
  CUDA_OK(set(other, word(1), 1));
  CUDA_OK(cuStreamSynchronize(other));  // other streams continue
  EXPECT_EQ(read(0), 0u);
  shared.go = true;
  CUDA_OK(cuStreamSynchronize(s));
  EXPECT_EQ(read(0), 1u);
  for (const CUresult call : shared.calls) EXPECT_EQ(call, CUDA_ERROR_NOT_PERMITTED);
}

TEST_F(StreamLifetimeTest, CallbackGetsStreamAndStatus) {
  struct Seen {
    CUstream stream;
    CUresult status;
    int calls;
  } seen{nullptr, CUDA_ERROR_UNKNOWN, 0};
  const CUstreamCallback note = [](CUstream stream, CUresult status, void* data) {
    auto& into = *static_cast<Seen*>(data);
    into = {stream, status, into.calls + 1};
  };
  const CUstream s = stream();
  CUDA_OK(cuStreamAddCallback(s, note, &seen, 0));
  CUDA_OK(cuStreamSynchronize(s));
  EXPECT_EQ(seen.stream, s);
  EXPECT_EQ(seen.status, CUDA_SUCCESS);
  CUDA_OK(cuStreamAddCallback(nullptr, note, &seen, 0));
  CUDA_OK(cuStreamSynchronize(nullptr));
  EXPECT_EQ(seen.stream, nullptr);
  EXPECT_EQ(seen.calls, 2);
  EXPECT_EQ(cuStreamAddCallback(s, nullptr, nullptr, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuStreamAddCallback(s, note, &seen, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuLaunchHostFunc(s, nullptr, nullptr), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(StreamLifetimeTest, PriorityFlagsIdsAndOwners) {
  CUstream s = nullptr;
  int priority = 1;
  CUDA_OK(cuStreamCreateWithPriority(&s, CU_STREAM_DEFAULT, -100));
  CUDA_OK(cuStreamGetPriority(s, &priority));
  EXPECT_EQ(priority, -5);
  CUDA_OK(cuStreamCreateWithPriority(&s, CU_STREAM_NON_BLOCKING, 5));
  CUDA_OK(cuStreamGetPriority(s, &priority));
  EXPECT_EQ(priority, 0);
  int least = 1, greatest = 1;
  CUDA_OK(cuCtxGetStreamPriorityRange(&least, &greatest));
  EXPECT_EQ(least, 0);
  EXPECT_EQ(greatest, -5);

  unsigned flags = 7;
  CUDA_OK(cuStreamGetFlags(s, &flags));
  EXPECT_EQ(flags, unsigned{CU_STREAM_NON_BLOCKING});
  CUDA_OK(cuStreamGetFlags(nullptr, &flags));
  EXPECT_EQ(flags, unsigned{CU_STREAM_DEFAULT});

  unsigned long long legacy = 0, null = 0, own = 0, created = 0;
  CUDA_OK(cuStreamGetId(CU_STREAM_LEGACY, &legacy));
  CUDA_OK(cuStreamGetId(nullptr, &null));
  CUDA_OK(cuStreamGetId(CU_STREAM_PER_THREAD, &own));
  CUDA_OK(cuStreamGetId(s, &created));
  EXPECT_EQ(legacy, null);
  EXPECT_NE(legacy, own);
  EXPECT_NE(legacy, created);
  EXPECT_NE(own, created);

  CUcontext owner = nullptr;
  CUDA_OK(cuStreamGetCtx(s, &owner));
  EXPECT_EQ(owner, context_);
  CUdevice device = -1;
  CUDA_OK(cuStreamGetDevice(s, &device));
  EXPECT_EQ(device, device_);
}

TEST_F(StreamLifetimeTest, RejectsBadArguments) {
  CUstream s = nullptr;
  EXPECT_EQ(cuStreamCreate(&s, 2), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuStreamCreate(nullptr, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuStreamDestroy_v2(nullptr), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuStreamDestroy_v2(CU_STREAM_LEGACY), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuStreamDestroy_v2(CU_STREAM_PER_THREAD), CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(StreamLifetimeTest, NoStreamBelongsToAGreenContext) {
  const CUstream s = stream();
  CUcontext owner = nullptr;
  CUgreenCtx green = reinterpret_cast<CUgreenCtx>(this);
  CUDA_OK(cuStreamGetCtx_v2(s, &owner, &green));
  EXPECT_EQ(owner, context_);
  EXPECT_EQ(green, nullptr);
  green = reinterpret_cast<CUgreenCtx>(this);
  CUDA_OK(cuStreamGetGreenCtx(s, &green));
  EXPECT_EQ(green, nullptr);
}

TEST_F(StreamLifetimeTest, AWholeContextWaitsForAnEvent) {
  const CUstream first = stream(CU_STREAM_NON_BLOCKING), second = stream(CU_STREAM_NON_BLOCKING);
  const CUevent done = event();
  CUDA_OK(spin(first, word(0)));
  CUDA_OK(cuEventRecord(done, first));
  CUDA_OK(cuCtxWaitEvent(context_, done));
  CUDA_OK(set(second, word(1), 1));
  EXPECT_EQ(cuStreamQuery(second), CUDA_ERROR_NOT_READY);
  write(0, 1);
  CUDA_OK(cuStreamSynchronize(second));
  EXPECT_EQ(read(1), 1u);
  EXPECT_EQ(cuCtxWaitEvent(context_, nullptr), CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(StreamLifetimeTest, AttributesAreKeptAndCopied) {
  const CUstream a = stream(), b = stream();
  CUstreamAttrValue value{};
  value.syncPolicy = CU_SYNC_POLICY_BLOCKING_SYNC;
  CUDA_OK(cuStreamSetAttribute(a, CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY, &value));
  CUDA_OK(cuStreamCopyAttributes(b, a));
  value = {};
  CUDA_OK(cuStreamGetAttribute(b, CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY, &value));
  EXPECT_EQ(value.syncPolicy, CU_SYNC_POLICY_BLOCKING_SYNC);
  value.priority = -3;
  CUDA_OK(cuStreamSetAttribute(a, CU_STREAM_ATTRIBUTE_PRIORITY, &value));
  int priority = 0;
  CUDA_OK(cuStreamGetPriority(a, &priority));
  EXPECT_EQ(priority, -3);
  EXPECT_EQ(cuStreamGetAttribute(a, CU_LAUNCH_ATTRIBUTE_COOPERATIVE, &value),
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(StreamLifetimeTest, AttributesAreChecked) {
  const CUstream s = stream();
  CUstreamAttrValue value{};
  CUDA_OK(cuStreamGetAttribute(s, CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY, &value));
  EXPECT_EQ(static_cast<int>(value.syncPolicy), -1);  // not set, and cannot be set
  const auto refused = [&](CUstreamAttrID attribute) {
    EXPECT_EQ(cuStreamSetAttribute(s, attribute, &value), CUDA_ERROR_INVALID_VALUE) << attribute;
  };
  refused(CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY);
  value = {};
  value.memSyncDomain = static_cast<CUlaunchMemSyncDomain>(2);
  refused(CU_STREAM_ATTRIBUTE_MEM_SYNC_DOMAIN);
  value = {};
  value.memSyncDomainMap = {3, 4};
  refused(CU_STREAM_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP);
  value = {};
  value.accessPolicyWindow.num_bytes = size_t{1} << 40;
  refused(CU_STREAM_ATTRIBUTE_ACCESS_POLICY_WINDOW);
  value.accessPolicyWindow.num_bytes = 0;
  value.accessPolicyWindow.hitRatio = 2;
  refused(CU_STREAM_ATTRIBUTE_ACCESS_POLICY_WINDOW);
  refused(CU_LAUNCH_ATTRIBUTE_COOPERATIVE);
}

TEST_F(StreamLifetimeTest, MemoryOperationsAreChecked) {
  CUdeviceptr memory = 0;
  CUDA_OK(cuMemAlloc_v2(&memory, 64));
  EXPECT_EQ(cuStreamWriteValue32_v2(nullptr, memory + 2, 1, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuStreamWriteValue64_v2(nullptr, memory + 4, 1, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuStreamWriteValue32_v2(nullptr, 0, 1, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuStreamWriteValue32_v2(nullptr, memory, 1, 8), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuStreamWaitValue32_v2(nullptr, memory, 1, 5), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuStreamWaitValue32_v2(nullptr, memory, 1, CU_STREAM_WAIT_VALUE_FLUSH),
            CUDA_ERROR_NOT_SUPPORTED);
  CUstreamBatchMemOpParams operations[3]{};
  operations[0].writeValue = {CU_STREAM_MEM_OP_WRITE_VALUE_32, memory, {7}, 0, 0};
  operations[1].operation = CU_STREAM_MEM_OP_BARRIER;
  operations[2].waitValue = {
      CU_STREAM_MEM_OP_WAIT_VALUE_32, memory, {7}, CU_STREAM_WAIT_VALUE_EQ, 0};
  EXPECT_EQ(cuStreamBatchMemOp_v2(nullptr, 3, operations, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuStreamBatchMemOp_v2(nullptr, 257, operations, 0), CUDA_ERROR_INVALID_VALUE);
  CUDA_OK(cuStreamBatchMemOp_v2(nullptr, 3, operations, 0));
  CUDA_OK(cuStreamWriteValue64_v2(nullptr, memory + 8, uint64_t{1} << 40, 0));
  CUDA_OK(cuStreamWaitValue64_v2(nullptr, memory + 8, 1, CU_STREAM_WAIT_VALUE_GEQ));
  uint32_t value = 0;
  CUDA_OK(cuMemcpyDtoH_v2(&value, memory, 4));
  EXPECT_EQ(value, 7u);
}

TEST_F(StreamLifetimeTest, WaitConditions) {
  struct Case {
    unsigned condition;
    uint32_t held_by, value, released_by;
  };
  // GEQ is cyclic: 0xfffffff0 is below 5.
  const Case cases[] = {{CU_STREAM_WAIT_VALUE_GEQ, 0xfffffff0, 5, 6},
                        {CU_STREAM_WAIT_VALUE_EQ, 4, 5, 5},
                        {CU_STREAM_WAIT_VALUE_AND, 0xa, 5, 4},
                        {CU_STREAM_WAIT_VALUE_NOR, 0xfffffffa, 5, 0}};
  const CUstream s = stream();
  for (const Case& c : cases) {
    write(0, c.held_by);
    CUDA_OK(cuStreamWaitValue32_v2(s, word(0), c.value, c.condition));
    EXPECT_EQ(cuStreamQuery(s), CUDA_ERROR_NOT_READY) << c.condition;
    write(0, c.released_by);
    CUDA_OK(cuStreamSynchronize(s));
  }
}

// On hardware each test needs its own process, because a fault ends all contexts of the process.
class StreamStickyTest : public StreamFixture {};

TEST_F(StreamStickyTest, AFaultIsReturnedByEveryLaterCall) {
  const CUstream s = stream(), other = stream(CU_STREAM_NON_BLOCKING);
  const CUevent before = event(), after = event();
  CUDA_OK(cuEventRecord(before, other));
  CUDA_OK(cuStreamSynchronize(other));
  CUgraph graph = nullptr;
  CUDA_OK(spin(s, word(0)));
  CUDA_OK(launch(function("illegal"), s, {}));
  CUDA_OK(cuEventRecord(after, s));
  write(0, 1);
  EXPECT_EQ(cuStreamSynchronize(s), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(cuStreamSynchronize(s), CUDA_ERROR_ILLEGAL_ADDRESS);
  CUstream made_stream = nullptr;
  CUevent made_event = nullptr;
  CUdeviceptr memory = 0;
  CUstreamCaptureStatus status{};
  int value = 0;
  float ms = 0;
  EXPECT_EQ(empty(other), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(cuLaunchKernel(empty_, 0, 1, 1, 1, 1, 1, 0, s, nullptr, nullptr),
            CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(cuEventQuery(before), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(cuEventQuery(after), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(cuEventElapsedTime_v2(&ms, before, after), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(cuEventRecord(after, s), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(cuStreamQuery(other), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(cuStreamCreate(&made_stream, 0), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(cuEventCreate(&made_event, 0), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(cuMemAlloc_v2(&memory, 4), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_NUM_REGS, empty_),
            CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(cuStreamIsCapturing(s, &status), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(cuStreamDestroy_v2(s), CUDA_ERROR_ILLEGAL_ADDRESS);
  CUDA_OK(cuGraphCreate(&graph, 0));
  CUDA_OK(cuGraphDestroy(graph));
}

TEST_F(StreamStickyTest, ACopyBehindTheFreeOfItsMemoryFaults) {
  const CUstream s = stream();
  CUdeviceptr memory = 0;
  CUDA_OK(cuMemAlloc_v2(&memory, 1 << 20));
  CUDA_OK(spin(s, word(0)));
  CUDA_OK(cuMemFreeAsync(memory, s));
  CUDA_OK(cuMemcpyDtoHAsync_v2(words_ + 1, memory, 4, s));
  write(0, 1);
  EXPECT_EQ(cuStreamSynchronize(s), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_F(StreamStickyTest, WorkBehindAFaultIsDroppedAndCallbacksAreTold) {
  std::atomic<int> host_calls{0}, status{-1};
  const CUstream s = stream();
  CUDA_OK(spin(s, word(0)));
  CUDA_OK(launch(function("trapping"), s, {}));
  CUDA_OK(set(s, word(1), 1));
  CUDA_OK(cuLaunchHostFunc(
      s, [](void* data) { ++*static_cast<std::atomic<int>*>(data); }, &host_calls));
  CUDA_OK(cuStreamAddCallback(
      s,
      [](CUstream, CUresult result, void* data) { *static_cast<std::atomic<int>*>(data) = result; },
      &status, 0));
  write(0, 1);
  EXPECT_EQ(cuStreamSynchronize(s), CUDA_ERROR_LAUNCH_FAILED);
  CUDA_OK(cuCtxDestroy_v2(context_));  // on hardware the callback has run by now, too
  context_ = nullptr;
  EXPECT_EQ(status, CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_EQ(host_calls, 0);
}

// softgpu only: on hardware a fault ends all contexts of the process.
TEST_F(StreamStickyTest, OtherContextsAreNotAffected) {
  CUcontext other = nullptr;
  CUDA_OK(cuCtxCreate_v2(&other, 0, device_));
  CUDA_OK(cuCtxSetCurrent(context_));
  CUDA_OK(launch(function("illegal"), nullptr, {}));
  EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
  CUDA_OK(cuCtxSetCurrent(other));
  CUdeviceptr memory = 0;
  CUDA_OK(cuMemAlloc_v2(&memory, 4));
  CUDA_OK(cuMemsetD32Async(memory, 1, 1, nullptr));
  CUDA_OK(cuCtxSynchronize());
  CUDA_OK(cuCtxDestroy_v2(other));
  CUDA_OK(cuCtxSetCurrent(context_));
}

}  // namespace
}  // namespace softgpu::driver
