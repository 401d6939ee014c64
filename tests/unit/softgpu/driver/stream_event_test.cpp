// Events: states, times, errors, and sharing between processes.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/softgpu/driver/stream_fixture.h"

namespace softgpu::driver {
namespace {

using StreamEventTest = StreamFixture;

TEST_F(StreamEventTest, NeverRecordedIsComplete) {
  const CUevent e = event();
  CUDA_OK(cuEventQuery(e));
  CUDA_OK(cuEventSynchronize(e));
  const CUstream s = stream();
  CUDA_OK(cuStreamWaitEvent(s, e, 0));
  CUDA_OK(cuStreamSynchronize(s));
}

TEST_F(StreamEventTest, ElapsedTimeIsThatBetweenTheRecords) {
  const CUstream s = stream();
  const CUevent first = event(), second = event();
  CUDA_OK(cuEventRecord(first, s));
  CUDA_OK(spin(s, word(0)));
  CUDA_OK(cuEventRecord(second, s));
  float ms = -1;
  EXPECT_EQ(cuEventElapsedTime_v2(&ms, first, second), CUDA_ERROR_NOT_READY);
  CUDA_OK(cuEventSynchronize(first));
  usleep(20'000);
  write(0, 1);
  CUDA_OK(cuEventSynchronize(second));
  CUDA_OK(cuEventElapsedTime_v2(&ms, first, second));
  EXPECT_GE(ms, 20.0f);  // the stream was held back for that long
  CUDA_OK(cuEventElapsedTime(&ms, first, first));
  EXPECT_EQ(ms, 0.0f);
  CUDA_OK(cuEventElapsedTime_v2(&ms, second, first));
  EXPECT_LE(ms, -20.0f);
}

TEST_F(StreamEventTest, ElapsedTimeNeedsTwoTimedRecords) {
  const CUevent a = event(), b = event(), untimed = event(CU_EVENT_DISABLE_TIMING);
  float ms = 0;
  EXPECT_EQ(cuEventElapsedTime_v2(&ms, a, b), CUDA_ERROR_INVALID_HANDLE);
  CUDA_OK(cuEventRecord(a, nullptr));
  EXPECT_EQ(cuEventElapsedTime_v2(&ms, a, b), CUDA_ERROR_INVALID_HANDLE);
  CUDA_OK(cuEventRecord(untimed, nullptr));
  CUDA_OK(cuCtxSynchronize());
  EXPECT_EQ(cuEventElapsedTime_v2(&ms, a, untimed), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuEventElapsedTime_v2(&ms, nullptr, a), CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(StreamEventTest, RejectsBadArguments) {
  CUevent e = nullptr;
  EXPECT_EQ(cuEventCreate(&e, 8), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuEventCreate(nullptr, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuEventCreate(&e, CU_EVENT_INTERPROCESS), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuEventRecord(nullptr, nullptr), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuEventQuery(nullptr), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuEventDestroy_v2(nullptr), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuStreamWaitEvent(nullptr, nullptr, 0), CUDA_ERROR_INVALID_HANDLE);
  e = event();
  EXPECT_EQ(cuEventRecordWithFlags(e, nullptr, 2), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuStreamWaitEvent(nullptr, e, 2), CUDA_ERROR_INVALID_VALUE);
  // External records and waits exist in captures only.
  EXPECT_EQ(cuEventRecordWithFlags(e, nullptr, CU_EVENT_RECORD_EXTERNAL), CUDA_ERROR_ILLEGAL_STATE);
  EXPECT_EQ(cuStreamWaitEvent(nullptr, e, CU_EVENT_WAIT_EXTERNAL), CUDA_ERROR_ILLEGAL_STATE);
}

TEST_F(StreamEventTest, EventOfAnotherContextCannotBeRecordedButWaitedFor) {
  const CUstream s = stream();
  CUDA_OK(spin(s, word(0)));
  const CUevent mine = event();
  CUDA_OK(cuEventRecord(mine, s));
  CUcontext other = nullptr;
  CUDA_OK(cuCtxCreate_v2(&other, 0, device_));
  const CUstream theirs = stream();
  EXPECT_EQ(cuEventRecord(mine, theirs), CUDA_ERROR_INVALID_HANDLE);
  CUDA_OK(cuStreamWaitEvent(theirs, mine, 0));
  CUDA_OK(cuMemsetD32Async(word(1), 5, 1, theirs));
  EXPECT_EQ(cuStreamQuery(theirs), CUDA_ERROR_NOT_READY);
  write(0, 1);
  CUDA_OK(cuStreamSynchronize(theirs));
  EXPECT_EQ(read(1), 5u);
  CUDA_OK(cuCtxDestroy_v2(other));
  CUDA_OK(cuCtxSetCurrent(context_));
}

TEST_F(StreamEventTest, ManyThreadsUseOneEvent) {
  const CUevent shared = event();
  for (int i = 0; i < 4; ++i) {
    in_thread([this, shared] {
      const CUstream s = stream(CU_STREAM_NON_BLOCKING);
      for (int n = 0; n < 100; ++n) {
        EXPECT_EQ(add(s, word(0), 1), CUDA_SUCCESS);
        EXPECT_EQ(cuEventRecord(shared, s), CUDA_SUCCESS);
        EXPECT_EQ(cuStreamWaitEvent(s, shared, 0), CUDA_SUCCESS);
        const CUresult query = cuEventQuery(shared);
        EXPECT_TRUE(query == CUDA_SUCCESS || query == CUDA_ERROR_NOT_READY);
      }
      EXPECT_EQ(cuEventSynchronize(shared), CUDA_SUCCESS);
      EXPECT_EQ(cuStreamDestroy_v2(s), CUDA_SUCCESS);
    });
  }
  join_threads();
  CUDA_OK(cuCtxSynchronize());
  EXPECT_EQ(read(0), 400u);
}

TEST_F(StreamEventTest, SharedEventsArePendingHoweverTheyAreRecorded) {
  const CUevent of_context = event(CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING);
  const CUevent of_graph = event(CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING);
  const CUstream s = stream();
  CUgraph graph = nullptr;
  CUgraphNode node = nullptr;
  CUgraphExec exec = nullptr;
  CUDA_OK(cuGraphCreate(&graph, 0));
  CUDA_OK(cuGraphAddEventRecordNode(&node, graph, nullptr, 0, of_graph));
  CUDA_OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
  CUDA_OK(spin(s, word(0)));
  CUDA_OK(cuCtxRecordEvent(context_, of_context));
  CUDA_OK(cuGraphLaunch(exec, s));
  EXPECT_EQ(cuEventQuery(of_context), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(cuEventQuery(of_graph), CUDA_ERROR_NOT_READY);
  write(0, 1);
  CUDA_OK(cuEventSynchronize(of_context));
  CUDA_OK(cuEventSynchronize(of_graph));
}

TEST_F(StreamEventTest, HandlesOfSharedEventsAreChecked) {
  CUipcEventHandle handle{};
  EXPECT_EQ(cuIpcGetEventHandle(&handle, event()), CUDA_ERROR_INVALID_HANDLE);
  CUevent opened = nullptr;
  EXPECT_EQ(cuIpcOpenEventHandle(&opened, handle), CUDA_ERROR_MAP_FAILED);
}

}  // namespace

// Two processes: the second is this program started again. SOFTGPU_TEST_EVENT_PIPES names its
// descriptors, and its filter runs the disabled test. (A process that has used CUDA cannot just
// fork.)
class SharedEventTest : public ::testing::Test {
 protected:
  static void send(int fd, const void* bytes, size_t size) {
    ASSERT_EQ(::write(fd, bytes, size), static_cast<ssize_t>(size));
  }
  static void receive(int fd, void* bytes, size_t size) {
    ASSERT_EQ(::read(fd, bytes, size), static_cast<ssize_t>(size));
  }
};

// The first process's stream waits for an event that the second process has recorded after a wait.
TEST_F(SharedEventTest, HoldsBackAnotherProcess) {
  int to_peer[2], from_peer[2];
  ASSERT_EQ(pipe(to_peer), 0);
  ASSERT_EQ(pipe(from_peer), 0);
  const std::string pipes = std::to_string(to_peer[0]) + " " + std::to_string(from_peer[1]);
  const pid_t peer = fork();
  ASSERT_GE(peer, 0);
  if (peer == 0) {
    setenv("SOFTGPU_TEST_EVENT_PIPES", pipes.c_str(), 1);
    execl("/proc/self/exe", "peer", "--gtest_filter=SharedEventTest.DISABLED_Peer",
          "--gtest_also_run_disabled_tests", nullptr);
    _exit(127);
  }
  close(to_peer[0]);
  close(from_peer[1]);
  CUipcEventHandle handle{};
  receive(from_peer[0], &handle, sizeof handle);
  CUcontext context = nullptr;
  CUevent event = nullptr;
  CUstream stream = nullptr;
  CUDA_OK(cuInit(0));
  CUDA_OK(cuCtxCreate_v2(&context, 0, 0));
  CUDA_OK(cuStreamCreate(&stream, 0));
  CUDA_OK(cuIpcOpenEventHandle(&event, handle));
  EXPECT_EQ(cuEventQuery(event), CUDA_ERROR_NOT_READY);
  CUDA_OK(cuStreamWaitEvent(stream, event, 0));
  EXPECT_EQ(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
  // A graph's node and a whole context wait for it too.
  CUstream others[2] = {};
  for (CUstream& other : others) CUDA_OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  CUgraph graph = nullptr;
  CUgraphNode node = nullptr;
  CUgraphExec exec = nullptr;
  CUDA_OK(cuGraphCreate(&graph, 0));
  CUDA_OK(cuGraphAddEventWaitNode(&node, graph, nullptr, 0, event));
  CUDA_OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
  CUDA_OK(cuGraphLaunch(exec, others[0]));
  CUdeviceptr memory = 0;
  CUDA_OK(cuMemAlloc_v2(&memory, 4));
  const auto is_pending = [](CUstream other) {
    for (int i = 0; i < 1000; ++i) {
      if (cuStreamQuery(other) != CUDA_ERROR_NOT_READY) return false;
      std::this_thread::yield();
    }
    return true;
  };
  EXPECT_TRUE(is_pending(others[0]));
  CUDA_OK(cuCtxWaitEvent(context, event));
  CUDA_OK(cuMemsetD32Async(memory, 1, 1, others[1]));
  EXPECT_TRUE(is_pending(others[1]));
  send(to_peer[1], "g", 1);
  CUDA_OK(cuStreamSynchronize(stream));
  CUDA_OK(cuCtxSynchronize());
  CUDA_OK(cuEventQuery(event));
  CUDA_OK(cuEventDestroy_v2(event));
  CUDA_OK(cuCtxDestroy_v2(context));
  send(to_peer[1], "e", 1);
  int status = 0;
  ASSERT_EQ(waitpid(peer, &status, 0), peer);
  EXPECT_EQ(status, 0);
  close(to_peer[1]);
  close(from_peer[0]);
}

TEST_F(SharedEventTest, DISABLED_Peer) {
  const char* pipes = getenv("SOFTGPU_TEST_EVENT_PIPES");
  ASSERT_NE(pipes, nullptr);
  int in = -1, out = -1;
  ASSERT_EQ(std::sscanf(pipes, "%d %d", &in, &out), 2);
  CUcontext context = nullptr;
  CUevent event = nullptr;
  uint32_t* flag = nullptr;
  CUipcEventHandle handle{};
  CUDA_OK(cuInit(0));
  CUDA_OK(cuCtxCreate_v2(&context, 0, 0));
  CUDA_OK(cuEventCreate(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
  CUDA_OK(cuMemHostAlloc(reinterpret_cast<void**>(&flag), 4, 0));
  CUDA_OK(cuIpcGetEventHandle(&handle, event));
  *flag = 0;
  CUDA_OK(cuStreamWaitValue32_v2(nullptr, reinterpret_cast<CUdeviceptr>(flag), 1,
                                 CU_STREAM_WAIT_VALUE_EQ));
  CUDA_OK(cuEventRecord(event, nullptr));
  send(out, &handle, sizeof handle);
  char go = 0;
  receive(in, &go, 1);
  std::atomic_ref(*flag).store(1);
  CUDA_OK(cuCtxSynchronize());
  receive(in, &go, 1);
  CUDA_OK(cuCtxDestroy_v2(context));
}

}  // namespace softgpu::driver
