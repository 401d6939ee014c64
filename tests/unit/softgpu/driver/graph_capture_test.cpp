// Stream capture: its effect on streams, events and calls. The table of results is that of driver
// 580 on an H200.
#include <functional>
#include <string>

#include "tests/unit/softgpu/driver/stream_fixture.h"

namespace softgpu::driver {
namespace {

constexpr CUstreamCaptureMode kModes[] = {CU_STREAM_CAPTURE_MODE_GLOBAL,
                                          CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                                          CU_STREAM_CAPTURE_MODE_RELAXED};
constexpr CUstreamCaptureMode kGlobal = CU_STREAM_CAPTURE_MODE_GLOBAL;

class GraphCaptureTest : public StreamFixture {
 protected:
  void SetUp() override {
    StreamFixture::SetUp();
    s_ = stream();
    other_ = stream();
  }
  void begin(CUstream s, CUstreamCaptureMode mode = kGlobal) {
    ASSERT_EQ(cuStreamBeginCapture_v2(s, mode), CUDA_SUCCESS);
  }
  // Ends the capture and destroys the graph; `nodes` receives its number of nodes.
  CUresult end(CUstream s, size_t* nodes = nullptr) {
    CUgraph graph = reinterpret_cast<CUgraph>(1);
    const CUresult result = cuStreamEndCapture(s, &graph);
    if (result != CUDA_SUCCESS) {
      EXPECT_EQ(graph, nullptr);
      return result;
    }
    if (nodes != nullptr) {
      EXPECT_EQ(cuGraphGetNodes(graph, nullptr, nodes), CUDA_SUCCESS);
    }
    EXPECT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
    return result;
  }
  CUstreamCaptureStatus status(CUstream s) {
    CUstreamCaptureStatus value = CU_STREAM_CAPTURE_STATUS_NONE;
    EXPECT_EQ(cuStreamIsCapturing(s, &value), CUDA_SUCCESS);
    return value;
  }
  CUresult on_other_thread(const std::function<CUresult()>& call) {
    CUresult result = CUDA_ERROR_UNKNOWN;
    in_thread([&] { result = call(); });
    join_threads();
    return result;
  }

  CUstream s_ = nullptr, other_ = nullptr;
};

// A call made during a capture: its result in each mode, and whether it invalidates the capture.
struct CallDuringCapture {
  std::string name;
  std::function<CUresult()> call;
  CUresult expected[3];  // global, thread-local, relaxed
  bool spoils[3];
  size_t added_nodes = 0;
};

TEST_F(GraphCaptureTest, CallsDuringACapture) {
  constexpr CUresult kOk = CUDA_SUCCESS, kUnsupported = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
                     kImplicit = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  CUdeviceptr memory = 0, made = 0, asynchronous = 0;
  CUDA_OK(cuMemAlloc_v2(&memory, 256));
  CUevent recorded = event();
  CUDA_OK(cuEventRecord(recorded, other_));
  CUevent never = event();
  CUstream made_stream = nullptr;
  CUevent made_event = nullptr;
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr, made_exec = nullptr;
  CUDA_OK(cuGraphCreate(&graph, 0));
  CUDA_OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
  CUDA_OK(cuCtxSynchronize());
  uint32_t host = 0;
  void* pinned = nullptr;
  int value = 0;
  float ms = 0;
  const CUstreamCallback callback = [](CUstream, CUresult, void*) {};
  const std::vector<CallDuringCapture> calls = {
      {"cuMemAlloc",
       [&] { return cuMemAlloc_v2(&made, 16); },
       {kUnsupported, kUnsupported, kOk},
       {true, true, false}},
      {"cuMemFree",
       [&] { return cuMemFree_v2(made); },
       {kUnsupported, kUnsupported, kOk},
       {true, true, false}},
      {"cuMemHostAlloc",
       [&] { return cuMemHostAlloc(&pinned, 64, 0); },
       {kUnsupported, kUnsupported, kOk},
       {true, true, false}},
      {"cuMemFreeHost",
       [&] { return cuMemFreeHost(pinned); },
       {kUnsupported, kUnsupported, kOk},
       {true, true, false}},
      {"cuMemcpyHtoD",
       [&] { return cuMemcpyHtoD_v2(memory, &host, 4); },
       {kImplicit, kImplicit, kImplicit},
       {true, true, true}},
      {"cuMemcpyDtoD",
       [&] { return cuMemcpyDtoD_v2(memory, memory + 64, 4); },
       {kImplicit, kImplicit, kImplicit},
       {true, true, true}},
      {"cuMemsetD8",
       [&] { return cuMemsetD8_v2(memory, 0, 4); },
       {kImplicit, kImplicit, kImplicit},
       {true, true, true}},
      {"launch in the legacy stream",
       [&] { return empty(nullptr); },
       {kImplicit, kImplicit, kImplicit},
       {true, true, true}},
      {"launch there from another thread",
       [&] { return on_other_thread([&] { return empty(nullptr); }); },
       {kImplicit, kImplicit, kImplicit},
       {true, true, true}},
      {"query of the capturing stream",
       [&] { return cuStreamQuery(s_); },
       {kUnsupported, kUnsupported, kUnsupported},
       {true, true, true}},
      {"wait for the capturing stream",
       [&] { return cuStreamSynchronize(s_); },
       {kUnsupported, kUnsupported, kUnsupported},
       {true, true, true}},
      {"query of another stream",
       [&] { return cuStreamQuery(other_); },
       {kUnsupported, kUnsupported, kOk},
       {true, true, false}},
      {"wait for another stream",
       [&] { return cuStreamSynchronize(other_); },
       {kUnsupported, kUnsupported, kOk},
       {true, true, false}},
      {"query of the legacy stream",
       [&] { return cuStreamQuery(nullptr); },
       {kImplicit, kImplicit, kImplicit},
       {true, true, true}},
      {"wait for the legacy stream",
       [&] { return cuStreamSynchronize(nullptr); },
       {kImplicit, kImplicit, kImplicit},
       {true, true, true}},
      {"cuCtxSynchronize",
       [&] { return cuCtxSynchronize(); },
       {kUnsupported, kUnsupported, kUnsupported},
       {true, true, true}},
      {"cuEventQuery",
       [&] { return cuEventQuery(recorded); },
       {kUnsupported, kUnsupported, kOk},
       {true, true, false}},
      {"cuEventSynchronize",
       [&] { return cuEventSynchronize(recorded); },
       {kUnsupported, kUnsupported, kOk},
       {true, true, false}},
      {"cuEventElapsedTime",
       [&] { return cuEventElapsedTime_v2(&ms, recorded, never); },
       {CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_HANDLE},
       {}},
      {"cuStreamCreate", [&] { return cuStreamCreate(&made_stream, 0); }, {kOk, kOk, kOk}, {}},
      {"cuStreamDestroy", [&] { return cuStreamDestroy_v2(made_stream); }, {kOk, kOk, kOk}, {}},
      {"cuEventCreate", [&] { return cuEventCreate(&made_event, 0); }, {kOk, kOk, kOk}, {}},
      {"cuEventDestroy", [&] { return cuEventDestroy_v2(made_event); }, {kOk, kOk, kOk}, {}},
      {"record in the legacy stream",
       [&] { return cuEventRecord(never, nullptr); },
       {kImplicit, kImplicit, kImplicit},
       {true, true, true}},
      {"wait in the legacy stream",
       [&] { return cuStreamWaitEvent(nullptr, recorded, 0); },
       {kImplicit, kImplicit, kImplicit},
       {true, true, true}},
      {"wait for an event never recorded",
       [&] { return cuStreamWaitEvent(s_, never, 0); },
       {kOk, kOk, kOk},
       {}},
      {"cuStreamAddCallback",
       [&] { return cuStreamAddCallback(s_, callback, nullptr, 0); },
       {kUnsupported, kUnsupported, kUnsupported},
       {true, true, true}},
      {"launch in another stream", [&] { return empty(other_); }, {kOk, kOk, kOk}, {}},
      {"instantiation",
       [&] { return cuGraphInstantiateWithFlags(&made_exec, graph, 0); },
       {kUnsupported, kUnsupported, kOk},
       {true, true, false}},
      {"graph launch in another stream",
       [&] { return cuGraphLaunch(exec, other_); },
       {kOk, kOk, kOk},
       {}},
      {"graph launch",
       [&] { return cuGraphLaunch(exec, s_); },
       {kUnsupported, kUnsupported, kUnsupported},
       {true, true, true}},
      {"cuGraphUpload",
       [&] { return cuGraphUpload(exec, s_); },
       {kUnsupported, kUnsupported, kUnsupported},
       {true, true, true}},
      {"cuMemAllocAsync",
       [&] { return cuMemAllocAsync(&asynchronous, 256, s_); },
       {kOk, kOk, kOk},
       {},
       1},
      {"cuMemAllocAsync in another stream",
       [&] { return cuMemAllocAsync(&made, 256, other_); },
       {kUnsupported, kUnsupported, kOk},
       {true, true, false}},
      {"copy", [&] { return cuMemcpyHtoDAsync_v2(memory, &host, 4, s_); }, {kOk, kOk, kOk}, {}, 1},
      {"cuStreamWriteValue32",
       [&] { return cuStreamWriteValue32_v2(s_, memory, 1, 0); },
       {kOk, kOk, kOk},
       {},
       1},
      {"cooperative launch",
       [&] { return cuLaunchCooperativeKernel(empty_, 1, 1, 1, 1, 1, 1, 0, s_, nullptr); },
       {kOk, kOk, kOk},
       {},
       1},
      {"launch of no block",
       [&] { return cuLaunchKernel(empty_, 0, 1, 1, 1, 1, 1, 0, s_, nullptr, nullptr); },
       {CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_INVALID_VALUE},
       {true, true, true}},
      {"cuFuncGetAttribute",
       [&] { return cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_NUM_REGS, empty_); },
       {kOk, kOk, kOk},
       {}},
      {"cuStreamIsCapturing of the legacy stream",
       [&] {
         CUstreamCaptureStatus ignored{};
         return cuStreamIsCapturing(nullptr, &ignored);
       },
       {kImplicit, kImplicit, kImplicit},
       {}},
      {"cuMemAlloc on another thread",
       [&] { return on_other_thread([&] { return cuMemAlloc_v2(&made, 16); }); },
       {kUnsupported, kOk, kOk},
       {true, false, false}},
  };
  for (int mode = 0; mode < 3; ++mode) {
    for (const CallDuringCapture& c : calls) {
      SCOPED_TRACE(c.name + ", mode " + std::to_string(mode));
      begin(s_, kModes[mode]);
      CUDA_OK(empty(s_));
      EXPECT_EQ(c.call(), c.expected[mode]);
      EXPECT_EQ(empty(s_), c.spoils[mode] ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS);
      size_t nodes = 0;
      if (c.spoils[mode]) {
        EXPECT_EQ(end(s_), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
      } else {
        EXPECT_EQ(end(s_, &nodes), CUDA_SUCCESS);
        EXPECT_EQ(nodes, 2 + c.added_nodes);
      }
      EXPECT_EQ(status(s_), CU_STREAM_CAPTURE_STATUS_NONE);
    }
  }
}

TEST_F(GraphCaptureTest, NothingRunsUntilTheGraphIsLaunched) {
  begin(s_);
  CUDA_OK(set(s_, word(0), 7));
  CUgraph graph = nullptr;
  CUDA_OK(cuStreamEndCapture(s_, &graph));
  CUDA_OK(cuStreamSynchronize(s_));
  EXPECT_EQ(read(0), 0u);
  CUgraphExec exec = nullptr;
  CUDA_OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
  CUDA_OK(cuGraphLaunch(exec, s_));
  CUDA_OK(cuStreamSynchronize(s_));
  EXPECT_EQ(read(0), 7u);
}

TEST_F(GraphCaptureTest, BeginAndEndWhereTheyAreNotAllowed) {
  CUgraph graph = nullptr;
  EXPECT_EQ(cuStreamBeginCapture_v2(nullptr, kGlobal), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(cuStreamBeginCapture_v2(CU_STREAM_LEGACY, kGlobal),
            CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(cuStreamBeginCapture_v2(s_, static_cast<CUstreamCaptureMode>(9)),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuStreamEndCapture(s_, &graph), CUDA_ERROR_ILLEGAL_STATE);
  begin(CU_STREAM_PER_THREAD);
  EXPECT_EQ(end(CU_STREAM_PER_THREAD), CUDA_SUCCESS);
  begin(s_);
  EXPECT_EQ(cuStreamBeginCapture_v2(s_, kGlobal), CUDA_ERROR_ILLEGAL_STATE);
  EXPECT_EQ(end(s_), CUDA_SUCCESS);
  begin(s_);
  CUDA_OK(cuStreamEndCapture(s_, nullptr));
  EXPECT_EQ(status(s_), CU_STREAM_CAPTURE_STATUS_NONE);
}

TEST_F(GraphCaptureTest, ForkAndJoin) {
  const CUevent forked = event(), joined = event();
  begin(s_);
  CUDA_OK(shift(s_, word(0), 1));
  CUDA_OK(cuEventRecord(forked, s_));
  CUDA_OK(cuStreamWaitEvent(other_, forked, 0));
  EXPECT_EQ(status(other_), CU_STREAM_CAPTURE_STATUS_ACTIVE);
  CUDA_OK(copy(other_, word(1), word(0)));
  CUDA_OK(shift(other_, word(1), 2));
  CUDA_OK(cuEventRecord(joined, other_));
  CUDA_OK(shift(s_, word(2), 3));
  CUDA_OK(cuStreamWaitEvent(s_, joined, 0));
  CUDA_OK(shift(s_, word(1), 4));
  CUgraph graph = nullptr;
  CUDA_OK(cuStreamEndCapture(s_, &graph));
  EXPECT_EQ(status(other_), CU_STREAM_CAPTURE_STATUS_NONE);
  size_t nodes = 0, edges = 0;
  CUDA_OK(cuGraphGetNodes(graph, nullptr, &nodes));
  CUDA_OK(cuGraphGetEdges_v2(graph, nullptr, nullptr, nullptr, &edges));
  EXPECT_EQ(nodes, 5u);
  EXPECT_EQ(edges, 5u);
  CUgraphExec exec = nullptr;
  CUDA_OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
  for (int i = 0; i < 20; ++i) {
    for (int w = 0; w < 3; ++w) write(w, 0);
    CUDA_OK(cuGraphLaunch(exec, s_));
    CUDA_OK(cuStreamSynchronize(s_));
    EXPECT_EQ(read(0), 1u);
    EXPECT_EQ(read(1), shifted(1, {2, 4}));
    EXPECT_EQ(read(2), 3u);
  }
}

TEST_F(GraphCaptureTest, UnjoinedWorkSpoilsTheGraph) {
  const CUevent forked = event(), joined = event();
  begin(s_);
  CUDA_OK(empty(s_));
  CUDA_OK(cuEventRecord(forked, s_));
  CUDA_OK(cuStreamWaitEvent(other_, forked, 0));
  CUDA_OK(empty(other_));
  EXPECT_EQ(end(s_), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
  EXPECT_EQ(status(s_), CU_STREAM_CAPTURE_STATUS_NONE);
  EXPECT_EQ(status(other_), CU_STREAM_CAPTURE_STATUS_NONE);

  // The join precedes the stream's last work.
  begin(s_);
  CUDA_OK(empty(s_));
  CUDA_OK(cuEventRecord(forked, s_));
  CUDA_OK(cuStreamWaitEvent(other_, forked, 0));
  CUDA_OK(empty(other_));
  CUDA_OK(cuEventRecord(joined, other_));
  CUDA_OK(empty(other_));
  CUDA_OK(cuStreamWaitEvent(s_, joined, 0));
  EXPECT_EQ(end(s_), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);

  // A forked stream without work need not be joined.
  begin(s_);
  CUDA_OK(empty(s_));
  CUDA_OK(cuEventRecord(forked, s_));
  CUDA_OK(cuStreamWaitEvent(other_, forked, 0));
  size_t nodes = 0;
  EXPECT_EQ(end(s_, &nodes), CUDA_SUCCESS);
  EXPECT_EQ(nodes, 1u);
}

TEST_F(GraphCaptureTest, EndBelongsToTheOriginAndItsThread) {
  const CUevent forked = event(), joined = event();
  CUgraph graph = nullptr;
  begin(s_);
  CUDA_OK(empty(s_));
  CUDA_OK(cuEventRecord(forked, s_));
  CUDA_OK(cuStreamWaitEvent(other_, forked, 0));
  CUDA_OK(cuEventRecord(joined, other_));
  CUDA_OK(cuStreamWaitEvent(s_, joined, 0));
  EXPECT_EQ(cuStreamEndCapture(other_, &graph), CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
  EXPECT_EQ(status(other_), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
  EXPECT_EQ(end(s_), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);

  for (const CUstreamCaptureMode mode : kModes) {
    begin(s_, mode);
    EXPECT_EQ(on_other_thread([&] { return end(s_); }),
              mode == CU_STREAM_CAPTURE_MODE_RELAXED ? CUDA_SUCCESS
                                                     : CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
    EXPECT_EQ(status(s_), CU_STREAM_CAPTURE_STATUS_NONE);
  }
}

TEST_F(GraphCaptureTest, CapturesDoNotMixWithEachOtherOrWithOtherWork) {
  const CUevent e = event();
  begin(s_);
  begin(other_);
  CUDA_OK(empty(s_));
  CUDA_OK(cuEventRecord(e, s_));
  EXPECT_EQ(cuStreamWaitEvent(other_, e, 0), CUDA_ERROR_STREAM_CAPTURE_MERGE);
  EXPECT_EQ(end(s_), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  EXPECT_EQ(end(other_), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);

  const CUstream free = stream(CU_STREAM_NON_BLOCKING);
  CUDA_OK(cuEventRecord(e, free));
  begin(s_);
  EXPECT_EQ(cuStreamWaitEvent(s_, e, 0), CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
  EXPECT_EQ(status(s_), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
  EXPECT_EQ(end(s_), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST_F(GraphCaptureTest, CapturedEvents) {
  const CUevent e = event(), other_event = event();
  for (const CUstreamCaptureMode mode : kModes) {
    begin(s_, mode);
    CUDA_OK(cuEventRecord(e, s_));
    EXPECT_EQ(cuEventQuery(e), CUDA_ERROR_CAPTURED_EVENT);
    EXPECT_EQ(end(s_), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    begin(s_, mode);
    CUDA_OK(cuEventRecord(e, s_));
    EXPECT_EQ(cuEventSynchronize(e), CUDA_ERROR_CAPTURED_EVENT);
    EXPECT_EQ(end(s_), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    begin(s_, mode);
    CUDA_OK(cuEventRecord(e, s_));
    EXPECT_EQ(cuStreamWaitEvent(nullptr, e, 0), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    EXPECT_EQ(end(s_), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  }
  begin(s_);
  CUDA_OK(empty(s_));
  CUDA_OK(cuEventRecord(e, s_));
  EXPECT_EQ(end(s_), CUDA_SUCCESS);
  float ms = 0;
  EXPECT_EQ(cuEventQuery(e), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuEventSynchronize(e), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuStreamWaitEvent(other_, e, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuEventElapsedTime_v2(&ms, e, other_event), CUDA_ERROR_INVALID_VALUE);
  CUDA_OK(cuEventRecord(e, other_));  // from now on an ordinary event
  CUDA_OK(cuEventSynchronize(e));
}

TEST_F(GraphCaptureTest, LegacyStreamMayBeUsedWhileANonBlockingStreamCaptures) {
  const CUstream free = stream(CU_STREAM_NON_BLOCKING);
  CUdeviceptr memory = 0;
  uint32_t value = 3;
  CUDA_OK(cuMemAlloc_v2(&memory, 4));
  begin(free);
  CUDA_OK(empty(nullptr));
  CUDA_OK(cuMemcpyHtoD_v2(memory, &value, 4));
  EXPECT_EQ(end(free), CUDA_SUCCESS);
  begin(free, CU_STREAM_CAPTURE_MODE_RELAXED);
  EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(end(free), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST_F(GraphCaptureTest, ThreadsChooseWhatCapturesForbidThem) {
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  CUDA_OK(cuThreadExchangeStreamCaptureMode(&mode));
  EXPECT_EQ(mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
  CUdeviceptr memory = 0;
  begin(s_);
  CUDA_OK(cuMemAlloc_v2(&memory, 16));
  EXPECT_EQ(end(s_), CUDA_SUCCESS);
  CUDA_OK(cuThreadExchangeStreamCaptureMode(&mode));
  EXPECT_EQ(mode, CU_STREAM_CAPTURE_MODE_RELAXED);

  begin(s_);
  EXPECT_EQ(on_other_thread([&] {
              CUstreamCaptureMode own = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
              EXPECT_EQ(cuThreadExchangeStreamCaptureMode(&own), CUDA_SUCCESS);
              return cuMemAlloc_v2(&memory, 16);
            }),
            CUDA_SUCCESS);
  EXPECT_EQ(end(s_), CUDA_SUCCESS);
}

TEST_F(GraphCaptureTest, DestroyedStreams) {
  const CUstream origin = stream();
  begin(origin);
  CUDA_OK(empty(origin));
  CUDA_OK(cuStreamDestroy_v2(origin));
  CUdeviceptr memory = 0;
  CUDA_OK(cuMemAlloc_v2(&memory, 16));  // no capture is active any more

  const CUstream forked = stream();
  const CUevent e = event();
  begin(s_);
  CUDA_OK(empty(s_));
  CUDA_OK(cuEventRecord(e, s_));
  CUDA_OK(cuStreamWaitEvent(forked, e, 0));
  CUDA_OK(empty(forked));
  CUDA_OK(cuStreamDestroy_v2(forked));
  EXPECT_EQ(status(s_), CU_STREAM_CAPTURE_STATUS_ACTIVE);
  EXPECT_EQ(end(s_), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
}

TEST_F(GraphCaptureTest, StreamsDestroyedAfterTheirJoin) {
  // As in cuda.core's GraphBuilder.join(). The second stream is joined only after it was destroyed.
  const CUstream first = stream(), second = stream(), idle = stream();
  const CUevent forked = event(), first_end = event(), second_end = event();
  begin(s_);
  CUDA_OK(empty(s_));
  CUDA_OK(cuEventRecord(forked, s_));
  for (const CUstream branch : {first, second, idle}) {
    CUDA_OK(cuStreamWaitEvent(branch, forked, 0));
  }
  CUDA_OK(empty(first));
  CUDA_OK(empty(second));
  CUDA_OK(cuEventRecord(first_end, first));
  CUDA_OK(cuStreamWaitEvent(s_, first_end, 0));
  CUDA_OK(cuStreamDestroy_v2(first));
  CUDA_OK(cuEventRecord(second_end, second));
  CUDA_OK(cuStreamDestroy_v2(second));
  CUDA_OK(cuStreamWaitEvent(s_, second_end, 0));
  CUDA_OK(cuStreamDestroy_v2(idle));
  CUDA_OK(empty(s_));
  EXPECT_EQ(end(s_), CUDA_SUCCESS);
}

TEST_F(GraphCaptureTest, DependenciesCanBeReadAndChanged) {
  CUgraph graph = nullptr, same = nullptr;
  CUgraphNode first = nullptr;
  CUDA_OK(cuGraphCreate(&graph, 0));
  CUDA_OK(cuGraphAddEmptyNode(&first, graph, nullptr, 0));
  CUDA_OK(cuStreamBeginCaptureToGraph(s_, graph, &first, nullptr, 1, kGlobal));
  CUDA_OK(empty(s_));
  CUstreamCaptureStatus state{};
  cuuint64_t id = 0;
  const CUgraphNode* tips = nullptr;
  size_t count = 0;
  CUDA_OK(cuStreamGetCaptureInfo_v2(s_, &state, &id, &same, &tips, &count));
  EXPECT_EQ(state, CU_STREAM_CAPTURE_STATUS_ACTIVE);
  EXPECT_EQ(same, graph);
  ASSERT_EQ(count, 1u);
  EXPECT_NE(tips[0], first);
  EXPECT_EQ(cuStreamUpdateCaptureDependencies_v2(s_, nullptr, nullptr, 0, 5),
            CUDA_ERROR_INVALID_VALUE);
  CUDA_OK(cuStreamUpdateCaptureDependencies_v2(s_, &first, nullptr, 1,
                                               CU_STREAM_SET_CAPTURE_DEPENDENCIES));
  CUDA_OK(empty(s_));
  CUDA_OK(cuStreamEndCapture(s_, &same));
  EXPECT_EQ(same, graph);
  size_t after_first = 0;
  CUDA_OK(cuGraphNodeGetDependentNodes(first, nullptr, &after_first));
  EXPECT_EQ(after_first, 2u);
  EXPECT_EQ(cuStreamUpdateCaptureDependencies_v2(s_, &first, nullptr, 1, 0),
            CUDA_ERROR_ILLEGAL_STATE);

  begin(s_);
  CUDA_OK(cuStreamGetCaptureInfo_v2(s_, &state, &id, &same, &tips, &count));
  EXPECT_EQ(cuGraphDestroy(same), CUDA_ERROR_ILLEGAL_STATE);
  EXPECT_EQ(end(s_), CUDA_SUCCESS);
}

TEST_F(GraphCaptureTest, ExternalEventsBecomeNodesAndStandForTheLaunch) {
  const CUevent started = event(), gate = event();
  CUDA_OK(spin(other_, word(0)));
  CUDA_OK(cuEventRecord(gate, other_));
  begin(s_);
  CUDA_OK(cuEventRecordWithFlags(started, s_, CU_EVENT_RECORD_EXTERNAL));
  CUDA_OK(cuStreamWaitEvent(s_, gate, CU_EVENT_WAIT_EXTERNAL));
  CUDA_OK(set(s_, word(1), 1));
  CUgraph graph = nullptr;
  CUDA_OK(cuStreamEndCapture(s_, &graph));
  CUgraphNode nodes[4];
  size_t count = 4;
  CUDA_OK(cuGraphGetNodes(graph, nodes, &count));
  ASSERT_EQ(count, 3u);
  CUgraphNodeType type{};
  CUDA_OK(cuGraphNodeGetType(nodes[0], &type));
  EXPECT_EQ(type, CU_GRAPH_NODE_TYPE_EVENT_RECORD);
  CUDA_OK(cuGraphNodeGetType(nodes[1], &type));
  EXPECT_EQ(type, CU_GRAPH_NODE_TYPE_WAIT_EVENT);
  CUgraphExec exec = nullptr;
  CUDA_OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
  CUDA_OK(cuGraphLaunch(exec, s_));
  CUDA_OK(cuEventSynchronize(started));
  EXPECT_EQ(read(1), 0u);  // held back by the gate
  EXPECT_EQ(cuStreamQuery(s_), CUDA_ERROR_NOT_READY);
  write(0, 1);
  CUDA_OK(cuStreamSynchronize(s_));
  EXPECT_EQ(read(1), 1u);
}

}  // namespace
}  // namespace softgpu::driver
