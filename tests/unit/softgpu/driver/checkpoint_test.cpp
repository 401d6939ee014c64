// cuCheckpointProcess*. The process acts on itself, from the test's thread.
#include <atomic>
#include <chrono>
#include <thread>

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/softgpu/driver/core_fixture.h"

namespace softgpu::driver {
namespace {

class CheckpointTest : public CoreTest {
 protected:
  void TearDown() override {
    (void)cuCheckpointProcessRestore(self_, nullptr);
    (void)cuCheckpointProcessUnlock(self_, nullptr);
    CoreTest::TearDown();
  }
  CUprocessState state() const {
    CUprocessState state{};
    EXPECT_EQ(cuCheckpointProcessGetState(self_, &state), CUDA_SUCCESS);
    return state;
  }
  static CUresult lock(unsigned timeout_ms) {
    CUcheckpointLockArgs arguments{};
    arguments.timeoutMs = timeout_ms;
    return cuCheckpointProcessLock(::getpid(), &arguments);
  }
  // Whether the kernel lists mapped pages of a device's memory file.
  static bool maps_device_memory(const char* name = "softgpu-device-") {
    bool found = false;
    if (FILE* maps = std::fopen("/proc/self/maps", "r")) {
      char line[512];
      while (std::fgets(line, sizeof line, maps)) {
        found = found || std::strstr(line, name);
      }
      std::fclose(maps);
    }
    return found;
  }

  const int self_ = ::getpid();
};

TEST_F(CheckpointTest, GoesThereAndBackWithItsMemory) {
  const auto small = noise(1000, 1), large = noise(5 << 20, 2);
  const CUdeviceptr first = allocate(small.size()), second = allocate(large.size());
  write(first, small);
  write(second, large);
  EXPECT_EQ(state(), CU_PROCESS_STATE_RUNNING);
  CUDA_OK(cuCheckpointProcessLock(self_, nullptr));
  EXPECT_EQ(state(), CU_PROCESS_STATE_LOCKED);
  EXPECT_TRUE(maps_device_memory());
  CUDA_OK(cuCheckpointProcessCheckpoint(self_, nullptr));
  EXPECT_EQ(state(), CU_PROCESS_STATE_CHECKPOINTED);
  EXPECT_FALSE(maps_device_memory());
  CUDA_OK(cuCheckpointProcessRestore(self_, nullptr));
  EXPECT_EQ(state(), CU_PROCESS_STATE_LOCKED);
  CUDA_OK(cuCheckpointProcessUnlock(self_, nullptr));
  EXPECT_EQ(state(), CU_PROCESS_STATE_RUNNING);
  EXPECT_EQ(read(first, small.size()), small);
  EXPECT_EQ(read(second, large.size()), large);
  CUDA_OK(cuMemFree_v2(first));
  CUDA_OK(cuMemFree_v2(second));
}

TEST_F(CheckpointTest, RefusesStepsOutOfOrder) {
  EXPECT_EQ(cuCheckpointProcessCheckpoint(self_, nullptr), CUDA_ERROR_ILLEGAL_STATE);
  EXPECT_EQ(cuCheckpointProcessRestore(self_, nullptr), CUDA_ERROR_ILLEGAL_STATE);
  EXPECT_EQ(cuCheckpointProcessUnlock(self_, nullptr), CUDA_ERROR_ILLEGAL_STATE);
  CUDA_OK(cuCheckpointProcessLock(self_, nullptr));
  EXPECT_EQ(cuCheckpointProcessLock(self_, nullptr), CUDA_ERROR_ILLEGAL_STATE);
  EXPECT_EQ(cuCheckpointProcessRestore(self_, nullptr), CUDA_ERROR_ILLEGAL_STATE);
  CUDA_OK(cuCheckpointProcessCheckpoint(self_, nullptr));
  EXPECT_EQ(cuCheckpointProcessUnlock(self_, nullptr), CUDA_ERROR_ILLEGAL_STATE);
  EXPECT_EQ(cuCheckpointProcessCheckpoint(self_, nullptr), CUDA_ERROR_ILLEGAL_STATE);
}

TEST_F(CheckpointTest, PairsOfGpusMoveTheMemoryAndMustNameAllGpus) {
  const auto content = noise(3 << 20, 3);
  const CUdeviceptr memory = allocate(content.size());
  write(memory, content);
  CUuuid first{}, second{};
  CUDA_OK(cuDeviceGetUuid_v2(&first, 0));
  CUDA_OK(cuDeviceGetUuid_v2(&second, 1));
  CUcheckpointGpuPair pairs[] = {{first, second}, {second, first}, {first, second}};
  CUcheckpointRestoreArgs arguments{};
  arguments.gpuPairs = pairs;
  for (const char* const name : {"softgpu-device-1 ", "softgpu-device-0 "}) {  // there and back
    CUDA_OK(cuCheckpointProcessLock(self_, nullptr));
    CUDA_OK(cuCheckpointProcessCheckpoint(self_, nullptr));
    for (const unsigned wrong : {1u, 3u}) {
      arguments.gpuPairsCount = wrong;
      EXPECT_EQ(cuCheckpointProcessRestore(self_, &arguments), CUDA_ERROR_INVALID_VALUE);
    }
    arguments.gpuPairsCount = 2;
    CUDA_OK(cuCheckpointProcessRestore(self_, &arguments));
    CUDA_OK(cuCheckpointProcessUnlock(self_, nullptr));
    EXPECT_EQ(read(memory, content.size()), content);
    EXPECT_TRUE(maps_device_memory(name));
  }
  CUDA_OK(cuMemFree_v2(memory));
}

TEST_F(CheckpointTest, RefusesOtherProcessesAndArguments) {
  EXPECT_EQ(cuCheckpointProcessLock(0, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuCheckpointProcessLock(1, nullptr), CUDA_ERROR_INVALID_VALUE);  // does not use CUDA
  EXPECT_EQ(cuCheckpointProcessGetState(self_, nullptr), CUDA_ERROR_INVALID_VALUE);
  CUcheckpointLockArgs arguments{};
  arguments.reserved1[3] = 1;
  EXPECT_EQ(cuCheckpointProcessLock(self_, &arguments), CUDA_ERROR_INVALID_VALUE);
  int thread = 0;
  CUDA_OK(cuCheckpointProcessGetRestoreThreadId(self_, &thread));
  EXPECT_EQ(::tgkill(self_, thread, 0), 0);
  EXPECT_EQ(state(), CU_PROCESS_STATE_RUNNING);
}

// Every call waits at its entry, also one that needs no context.
TEST_F(CheckpointTest, CallsWaitWhileTheProcessIsLocked) {
  const CUdeviceptr memory = allocate(4096);
  CUDA_OK(cuCheckpointProcessLock(self_, nullptr));
  std::atomic<int> done{0};
  std::vector<std::thread> callers;
  callers.emplace_back([&] {
    size_t free = 0, total = 0;
    EXPECT_EQ(cuCtxSetCurrent(context_), CUDA_SUCCESS);
    EXPECT_EQ(cuMemGetInfo_v2(&free, &total), CUDA_SUCCESS);
    ++done;
  });
  callers.emplace_back([&] {
    int count = 0;
    EXPECT_EQ(cuDeviceGetCount(&count), CUDA_SUCCESS);
    ++done;
  });
  callers.emplace_back([&] {
    EXPECT_EQ(cuStreamQuery(CU_STREAM_LEGACY), CUDA_ERROR_INVALID_CONTEXT);
    ++done;
  });
  CUDA_OK(cuCheckpointProcessCheckpoint(self_, nullptr));
  // The calls of the threads must not return while the process is locked, however long that is.
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(done, 0);
  CUDA_OK(cuCheckpointProcessRestore(self_, nullptr));
  EXPECT_EQ(done, 0);
  CUDA_OK(cuCheckpointProcessUnlock(self_, nullptr));
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(done, 3);
  CUDA_OK(cuMemFree_v2(memory));
}

// The work is a stream that waits for a word of host memory.
TEST_F(CheckpointTest, LockWaitsForWorkAndGivesUpAtItsTimeout) {
  uint32_t* word = nullptr;
  CUDA_OK(cuMemHostAlloc(reinterpret_cast<void**>(&word), sizeof *word, 0));
  *word = 0;
  CUstream stream = nullptr;
  CUDA_OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CUDA_OK(cuStreamWaitValue32_v2(stream, reinterpret_cast<CUdeviceptr>(word), 1,
                                 CU_STREAM_WAIT_VALUE_EQ));
  EXPECT_EQ(lock(20), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(state(), CU_PROCESS_STATE_RUNNING);
  EXPECT_EQ(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);  // calls still return
  std::thread locker([] { EXPECT_EQ(lock(0), CUDA_SUCCESS); });
  std::atomic_ref(*word).store(1);
  locker.join();
  EXPECT_EQ(state(), CU_PROCESS_STATE_LOCKED);
  CUDA_OK(cuCheckpointProcessUnlock(self_, nullptr));
  CUDA_OK(cuStreamDestroy_v2(stream));
  CUDA_OK(cuMemFreeHost(word));
}

TEST_F(CheckpointTest, ManagedMemoryIsNotSupported) {
  CUdeviceptr managed = 0;
  CUDA_OK(cuMemAllocManaged(&managed, 4096, CU_MEM_ATTACH_GLOBAL));
  CUDA_OK(cuCheckpointProcessLock(self_, nullptr));
  EXPECT_EQ(cuCheckpointProcessCheckpoint(self_, nullptr), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(state(), CU_PROCESS_STATE_LOCKED);
  CUDA_OK(cuCheckpointProcessUnlock(self_, nullptr));
  CUDA_OK(cuMemFree_v2(managed));
}

// While the process is checkpointed, its device addresses are reserved but not mapped.
TEST_F(CheckpointTest, AnAccessToTheMemoryFaultsMeanwhile) {
  const CUdeviceptr memory = allocate(4096);
  CUDA_OK(cuCheckpointProcessLock(self_, nullptr));
  CUDA_OK(cuCheckpointProcessCheckpoint(self_, nullptr));
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGSEGV, SIG_DFL);
    std::_Exit(*reinterpret_cast<volatile const char*>(memory));
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV) << status;
  CUDA_OK(cuCheckpointProcessRestore(self_, nullptr));
  CUDA_OK(cuCheckpointProcessUnlock(self_, nullptr));
  CUDA_OK(cuMemFree_v2(memory));
}

TEST_F(CheckpointTest, MappedPhysicalMemoryComesBack) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  constexpr size_t kBytes = 2u << 20;
  CUmemGenericAllocationHandle physical = 0;
  CUdeviceptr address = 0;
  CUDA_OK(cuMemCreate(&physical, kBytes, &properties, 0));
  CUDA_OK(cuMemAddressReserve(&address, 2 * kBytes, 0, 0, 0));
  for (const CUdeviceptr at : {address, address + kBytes}) {  // the same memory twice
    CUDA_OK(cuMemMap(at, kBytes, 0, physical, 0));
  }
  const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, 0},
                               CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUDA_OK(cuMemSetAccess(address, 2 * kBytes, &access, 1));
  const auto data = noise(kBytes);
  write(address, data);
  CUDA_OK(cuCheckpointProcessLock(self_, nullptr));
  CUDA_OK(cuCheckpointProcessCheckpoint(self_, nullptr));
  CUDA_OK(cuCheckpointProcessRestore(self_, nullptr));
  CUDA_OK(cuCheckpointProcessUnlock(self_, nullptr));
  EXPECT_EQ(read(address + kBytes, kBytes), data);
  CUDA_OK(cuMemUnmap(address, 2 * kBytes));
  CUDA_OK(cuMemAddressFree(address, 2 * kBytes));
  CUDA_OK(cuMemRelease(physical));
}

}  // namespace
}  // namespace softgpu::driver
