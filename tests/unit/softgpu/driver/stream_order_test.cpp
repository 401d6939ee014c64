// Work in streams runs in order where CUDA promises it, and concurrently where it does not.
#include <random>

#include "tests/unit/softgpu/driver/stream_fixture.h"

namespace softgpu::driver {
namespace {

using StreamOrderTest = StreamFixture;

TEST_F(StreamOrderTest, OperationsOfOneStreamKeepTheirOrder) {
  const CUstream s = stream();
  uint32_t expected = 0;
  for (uint32_t i = 1; i <= 500; ++i) {
    CUDA_OK(shift(s, word(0), i));
    expected = expected * 31 + i;
  }
  CUDA_OK(cuStreamSynchronize(s));
  EXPECT_EQ(read(0), expected);
}

TEST_F(StreamOrderTest, KernelsCopiesFillsAndHostFunctionsKeepTheirOrder) {
  const CUstream s = stream();
  CUdeviceptr memory = 0;
  CUDA_OK(cuMemAlloc_v2(&memory, 64));
  std::vector<uint32_t> seen(100);
  for (uint32_t i = 0; i < seen.size(); ++i) {
    CUDA_OK(cuMemsetD32Async(memory, i, 1, s));
    CUDA_OK(shift(s, memory, 7));
    CUDA_OK(cuMemcpyDtoDAsync_v2(memory + 8, memory, 4, s));
    CUDA_OK(shift(s, memory + 8, 9));
    CUDA_OK(cuMemcpyDtoHAsync_v2(words_, memory + 8, 4, s));
    struct Note {
      uint32_t* from;
      uint32_t* to;
    };
    CUDA_OK(cuLaunchHostFunc(
        s,
        [](void* data) {
          const auto* note = static_cast<Note*>(data);
          *note->to = *note->from;
          delete note;
        },
        new Note{words_, &seen[i]}));
  }
  CUDA_OK(cuStreamSynchronize(s));
  for (uint32_t i = 0; i < seen.size(); ++i) EXPECT_EQ(seen[i], shifted(i, {7, 9}));
}

TEST_F(StreamOrderTest, StreamsRunAtTheSameTime) {
  const CUstream a = stream(), b = stream();
  CUDA_OK(spin(a, word(0)));
  CUDA_OK(set(a, word(1), 1));
  // Only a stream that overtakes the spinning kernel ends it.
  CUDA_OK(cuStreamWriteValue32_v2(b, word(0), 1, 0));
  CUDA_OK(cuStreamSynchronize(a));
  EXPECT_EQ(read(1), 1u);
}

// softgpu only: hardware has fewer queues than these streams, and streams that share a queue wait
// for each other.
TEST_F(StreamOrderTest, ManyStreamsRunAtTheSameTime) {
  // Each stream waits for its successor; the last stream starts the chain.
  constexpr int kStreams = 24;
  std::vector<CUstream> streams;
  for (int i = 0; i < kStreams; ++i) {
    streams.push_back(stream(CU_STREAM_NON_BLOCKING));
    CUDA_OK(cuStreamWaitValue32_v2(streams[i], word(i), 1, CU_STREAM_WAIT_VALUE_EQ));
    if (i > 0) {
      CUDA_OK(cuStreamWriteValue32_v2(streams[i], word(i - 1), 1, 0));
    }
  }
  write(kStreams - 1, 1);
  CUDA_OK(cuCtxSynchronize());
  EXPECT_EQ(read(0), 1u);
}

TEST_F(StreamOrderTest, EventHoldsBackAnotherStream) {
  const CUstream a = stream(), b = stream();
  const CUevent passed = event();
  CUDA_OK(spin(a, word(0)));
  CUDA_OK(shift(a, word(1), 1));
  CUDA_OK(cuEventRecord(passed, a));
  CUDA_OK(cuStreamWaitEvent(b, passed, 0));
  CUDA_OK(shift(b, word(1), 2));
  EXPECT_EQ(cuStreamQuery(b), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(cuEventQuery(passed), CUDA_ERROR_NOT_READY);
  write(0, 1);
  CUDA_OK(cuStreamSynchronize(b));
  EXPECT_EQ(read(1), shifted(0, {1, 2}));
}

TEST_F(StreamOrderTest, WaitTakesTheRecordOfTheTimeOfTheCall) {
  const CUstream a = stream(), b = stream();
  const CUevent e = event();
  CUDA_OK(cuEventRecord(e, a));
  CUDA_OK(cuStreamWaitEvent(b, e, 0));
  CUDA_OK(spin(a, word(0)));
  CUDA_OK(cuEventRecord(e, a));
  CUDA_OK(set(b, word(1), 1));
  CUDA_OK(cuStreamSynchronize(b));  // would hang if the wait followed the second record
  EXPECT_EQ(read(1), 1u);
  EXPECT_EQ(cuEventQuery(e), CUDA_ERROR_NOT_READY);
  write(0, 1);
  CUDA_OK(cuEventSynchronize(e));
}

TEST_F(StreamOrderTest, LegacyStreamWaitsForBlockingStreams) {
  const CUstream a = stream(), b = stream();
  CUDA_OK(spin(a, word(0)));
  CUDA_OK(shift(a, word(1), 1));
  CUDA_OK(shift(nullptr, word(1), 2));
  EXPECT_EQ(cuStreamQuery(nullptr), CUDA_ERROR_NOT_READY);
  // Blocking streams wait for it, even one that was idle.
  CUDA_OK(shift(b, word(1), 3));
  EXPECT_EQ(cuStreamQuery(b), CUDA_ERROR_NOT_READY);
  write(0, 1);
  CUDA_OK(cuStreamSynchronize(b));
  EXPECT_EQ(read(1), shifted(0, {1, 2, 3}));
}

TEST_F(StreamOrderTest, LegacyStreamReportsBlockingStreamsAsItsOwn) {
  const CUstream a = stream();
  CUDA_OK(spin(a, word(0)));
  EXPECT_EQ(cuStreamQuery(nullptr), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(cuStreamQuery(CU_STREAM_LEGACY), CUDA_ERROR_NOT_READY);
  write(0, 1);
  CUDA_OK(cuStreamSynchronize(nullptr));
  CUDA_OK(cuStreamQuery(a));
}

TEST_F(StreamOrderTest, NonBlockingStreamsAndTheLegacyStreamIgnoreEachOther) {
  const CUstream free = stream(CU_STREAM_NON_BLOCKING);
  CUDA_OK(spin(free, word(0)));
  CUDA_OK(set(nullptr, word(1), 1));
  CUDA_OK(cuStreamSynchronize(nullptr));
  EXPECT_EQ(read(1), 1u);

  const CUstream blocking = stream();
  CUDA_OK(spin(blocking, word(2)));
  CUDA_OK(set(nullptr, word(3), 1));
  const CUstream other = stream(CU_STREAM_NON_BLOCKING);
  CUDA_OK(set(other, word(4), 1));
  CUDA_OK(cuStreamSynchronize(other));
  EXPECT_EQ(read(4), 1u);
  EXPECT_EQ(read(3), 0u);
  write(0, 1);
  write(2, 1);
  CUDA_OK(cuCtxSynchronize());
  EXPECT_EQ(read(3), 1u);
}

TEST_F(StreamOrderTest, SynchronousCopyWaitsForBlockingStreams) {
  const CUstream a = stream();
  CUdeviceptr memory = 0;
  CUDA_OK(cuMemAlloc_v2(&memory, 4));
  CUDA_OK(spin(a, word(0)));
  CUDA_OK(set(a, memory, 42));
  in_thread([this] { write(0, 1); });
  uint32_t value = 0;
  CUDA_OK(cuMemcpyDtoH_v2(&value, memory, 4));
  EXPECT_EQ(value, 42u);
}

TEST_F(StreamOrderTest, PerThreadStreamsRunAtTheSameTime) {
  // Thread i waits for word i + 1, which thread i + 1 sets. The host sets the last thread's word.
  constexpr int kThreads = 8;
  for (int i = 0; i < kThreads; ++i) {
    in_thread([this, i] {
      EXPECT_EQ(spin(CU_STREAM_PER_THREAD, word(i + 1)), CUDA_SUCCESS);
      EXPECT_EQ(set(CU_STREAM_PER_THREAD, word(i), 1), CUDA_SUCCESS);
      EXPECT_EQ(cuStreamSynchronize(CU_STREAM_PER_THREAD), CUDA_SUCCESS);
      EXPECT_EQ(read(i), 1u);
    });
  }
  write(kThreads, 1);
  join_threads();
}

TEST_F(StreamOrderTest, PerThreadStreamIsABlockingStream) {
  CUDA_OK(spin(CU_STREAM_PER_THREAD, word(0)));
  CUDA_OK(shift(CU_STREAM_PER_THREAD, word(1), 1));
  CUDA_OK(shift(nullptr, word(1), 2));
  in_thread([this] { EXPECT_EQ(shift(CU_STREAM_PER_THREAD, word(1), 3), CUDA_SUCCESS); });
  join_threads();
  write(0, 1);
  CUDA_OK(cuCtxSynchronize());
  EXPECT_EQ(read(1), shifted(0, {1, 2, 3}));
}

TEST_F(StreamOrderTest, WorkOfAThreadThatEndedIsStillDone) {
  in_thread([this] {
    EXPECT_EQ(spin(CU_STREAM_PER_THREAD, word(0)), CUDA_SUCCESS);
    EXPECT_EQ(set(CU_STREAM_PER_THREAD, word(1), 1), CUDA_SUCCESS);
  });
  join_threads();
  EXPECT_EQ(read(1), 0u);
  write(0, 1);
  CUDA_OK(cuCtxSynchronize());
  EXPECT_EQ(read(1), 1u);
}

TEST_F(StreamOrderTest, ContextWideEventsSeparateAllStreams) {
  const CUstream a = stream(CU_STREAM_NON_BLOCKING), b = stream();
  const CUevent all = event();
  CUDA_OK(spin(a, word(0)));
  CUDA_OK(shift(a, word(1), 1));
  CUDA_OK(cuCtxRecordEvent(context_, all));
  CUDA_OK(cuStreamWaitEvent(b, all, 0));
  CUDA_OK(shift(b, word(1), 2));
  EXPECT_EQ(cuEventQuery(all), CUDA_ERROR_NOT_READY);
  write(0, 1);
  CUDA_OK(cuStreamSynchronize(b));
  EXPECT_EQ(read(1), shifted(0, {1, 2}));
}

// Random operations on random streams. Before an operation reads another stream's word, it waits
// for an event recorded after the word's last change; before it changes a word, it waits for the
// word's readers. So the result is that of running all operations in the order of submission, and a
// swap of any two dependent operations shows.
TEST_F(StreamOrderTest, RandomDependenciesGiveTheSequentialResult) {
  constexpr int kStreams = 6, kOperations = 400, kRounds = 5;
  for (int round = 0; round < kRounds; ++round) {
    std::mt19937 random(static_cast<unsigned>(round));
    std::vector<CUstream> streams;
    std::vector<CUevent> events;
    std::vector<uint32_t> expected(kStreams, 0);
    for (int i = 0; i < kStreams; ++i) {
      streams.push_back(i == 0   ? nullptr
                        : i == 1 ? CU_STREAM_PER_THREAD
                                 : stream(i % 2 == 0 ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT));
      events.push_back(event(CU_EVENT_DISABLE_TIMING));
      write(i, 0);
    }
    auto follow = [&](int waiter, int passed) {
      ASSERT_EQ(cuEventRecord(events[passed], streams[passed]), CUDA_SUCCESS);
      ASSERT_EQ(cuStreamWaitEvent(streams[waiter], events[passed], 0), CUDA_SUCCESS);
    };
    for (uint32_t n = 1; n <= kOperations; ++n) {
      const int me = static_cast<int>(random() % kStreams);
      const int other = static_cast<int>(random() % kStreams);
      switch (random() % 3) {
        case 0:
          CUDA_OK(shift(streams[me], word(me), n));
          expected[me] = shifted(expected[me], {n});
          break;
        case 1:
          follow(me, other);
          CUDA_OK(copy(streams[me], word(me), word(other)));
          CUDA_OK(shift(streams[me], word(me), n));
          follow(other, me);
          expected[me] = shifted(expected[other], {n});
          break;
        default:
          follow(me, other);
          CUDA_OK(cuMemcpyDtoDAsync_v2(word(other), word(me), 4, streams[me]));
          follow(other, me);
          expected[other] = expected[me];
          break;
      }
    }
    CUDA_OK(cuCtxSynchronize());
    for (int i = 0; i < kStreams; ++i) EXPECT_EQ(read(i), expected[i]) << "stream " << i;
  }
}

}  // namespace
}  // namespace softgpu::driver
