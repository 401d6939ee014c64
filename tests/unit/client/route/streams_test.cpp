// The stream that a handle names, and its worker.
#include <memory>
#include <thread>

#include <gtest/gtest.h>

#include "api/opcodes.h"
#include "client/route/default_streams.h"
#include "client/route/find_route.h"
#include "client/session/timeline.h"
#include "common/interop/default_stream.h"
#include "common/wire/codec.h"
#include "generated/client/forward.h"
#include "tests/unit/client/two_puppets.h"

namespace rcuda::client {
namespace {

class StreamsTest : public TwoPuppetsTest {
 protected:
  struct Resolved {
    CUresult result;
    Session* session;
    wire::ObjectId id;
  };
  static Resolved resolved(const CudaResult<StreamRoute>& found) {
    return found ? Resolved{CUDA_SUCCESS, found->session, found->id}
                 : Resolved{found.result(), nullptr, 0};
  }
  static Resolved resolved(const void* handle) {
    return resolved(find_stream_route(static_cast<CUstream>(const_cast<void*>(handle))));
  }
  size_t created() { return sent(static_cast<uint16_t>(api::Opcode::cuStreamCreate)).size(); }
  size_t destroyed() { return sent(static_cast<uint16_t>(api::Opcode::cuStreamDestroy_v2)).size(); }
};

TEST_F(StreamsTest, NullAndLegacyAreTheDefaultStreamOfTheCurrentContext) {
  for (const void* handle :
       {static_cast<const void*>(nullptr), static_cast<const void*>(CU_STREAM_LEGACY)}) {
    const Resolved answer = resolved(handle);
    EXPECT_EQ(answer.result, CUDA_SUCCESS);
    EXPECT_EQ(answer.session, &first_session());
    EXPECT_EQ(answer.id, 0u);
  }
  std::thread([&] { EXPECT_EQ(resolved(nullptr).result, CUDA_ERROR_INVALID_CONTEXT); }).join();
}

// A command that queues work has a position in the stream's timeline; a query has none.
TEST_F(StreamsTest, ACommandCountsInTheTimelineOfItsStream) {
  CUstream stream = nullptr;
  ASSERT_EQ(forward_cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  Timeline& timeline = *find<Stream>(stream)->timeline;
  const auto route = find_stream_route(stream);
  ASSERT_EQ(route.result(), CUDA_SUCCESS);
  EXPECT_EQ(route->timeline, &timeline);
  EXPECT_EQ(route->stream, find<Stream>(stream));
  EXPECT_EQ(route->id, route->stream->id);
  EXPECT_EQ(timeline.sent(), 0u);
  ASSERT_EQ(forward_cuStreamCopyAttributes(stream, stream), CUDA_SUCCESS);
  EXPECT_EQ(timeline.sent(), 1u);
  EXPECT_EQ(cuStreamQuery(stream), CUDA_SUCCESS);
  EXPECT_EQ(timeline.sent(), 1u);
  EXPECT_TRUE(timeline.is_level());
  EXPECT_EQ(forward_cuStreamDestroy_v2(stream), CUDA_SUCCESS);
}

TEST_F(StreamsTest, TheLegacyDefaultStreamHasATimelineInEachContext) {
  const auto route = find_stream_route(nullptr);
  ASSERT_EQ(route.result(), CUDA_SUCCESS);
  EXPECT_EQ(route->timeline, process().device(0)->primary->timeline.get());
  // A command for another context advances neither the current context's timeline nor the timeline
  // of the stream by which its route was found.
  const Route elsewhere = route_of(*process().device(2)->primary);
  const auto other = find_stream_route(
      nullptr, {elsewhere.session, elsewhere.context, elsewhere.device, route->timeline});
  ASSERT_EQ(other.result(), CUDA_SUCCESS);
  EXPECT_EQ(other->timeline, nullptr);
}

// A program may query a stream much more often than the stream's queue has places.
TEST_F(StreamsTest, AQueryOfTheLegacyDefaultStreamTakesNoPlace) {
  const Timeline& timeline = *process().device(0)->primary->timeline;
  const uint64_t sent = timeline.sent();
  first().on(static_cast<uint16_t>(api::Opcode::cuStreamQuery), [](const Command&) {
    return test::PuppetServer::Answer{CUDA_ERROR_NOT_READY, {}};
  });
  for (int i = 0; i < 3; ++i) EXPECT_EQ(cuStreamQuery(nullptr), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(timeline.sent(), sent);
}

TEST_F(StreamsTest, WithoutAContextWorkForADeadStreamHasTheErrorOfTheContext) {
  std::thread([] {
    auto* const dead = reinterpret_cast<CUstream>(uintptr_t{0x1234});
    CUdeviceptr address = 0;
    EXPECT_EQ(cuLaunchHostFunc(
                  dead, [](void*) {}, nullptr),
              CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(cuMemAllocAsync(&address, 16, dead), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(cuMemsetD8Async(16, 0, 16, dead), CUDA_ERROR_INVALID_CONTEXT);
  }).join();
}

TEST_F(StreamsTest, AStreamBringsItsWorkerAlong) {
  push_context(process().device(1)->primary);
  CUstream stream = nullptr;
  ASSERT_EQ(forward_cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  pop_context();
  const Resolved answer = resolved(stream);
  EXPECT_EQ(answer.result, CUDA_SUCCESS);
  EXPECT_EQ(answer.session, &second_session());
  EXPECT_NE(answer.id, 0u);
  // A command for one server cannot use a stream of another.
  const auto first = find_current_route();
  ASSERT_EQ(first.result(), CUDA_SUCCESS);
  EXPECT_EQ(resolved(find_stream_route(stream, *first)).result, CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(forward_cuStreamDestroy_v2(stream), CUDA_SUCCESS);
  EXPECT_EQ(resolved(stream).result, CUDA_ERROR_INVALID_HANDLE);
  int no_stream = 0;
  EXPECT_EQ(resolved(&no_stream).result, CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(StreamsTest, EachThreadHasAPerThreadStreamInEachContext) {
  (void)created();
  (void)destroyed();
  std::thread([&] {
    push_context(process().device(0)->primary);
    const Resolved once = resolved(CU_STREAM_PER_THREAD), again = resolved(CU_STREAM_PER_THREAD);
    EXPECT_EQ(once.result, CUDA_SUCCESS);
    EXPECT_NE(once.id, 0u);
    EXPECT_EQ(once.id, again.id);
    wire::ObjectId others = 0;
    std::thread([&] {
      push_context(process().device(0)->primary);
      others = resolved(CU_STREAM_PER_THREAD).id;
    }).join();
    EXPECT_NE(others, once.id);
    set_current_context(process().device(2)->primary);
    EXPECT_NE(resolved(CU_STREAM_PER_THREAD).id, once.id);
    EXPECT_EQ(created(), 3u);
    EXPECT_EQ(destroyed(), 1u);  // the stream of the thread that has ended
  }).join();
  EXPECT_EQ(destroyed(), 2u);
}

TEST_F(StreamsTest, WorkOfAThreadThatHasEndedIsKnownToEnd) {
  std::shared_ptr<Timeline> timeline;
  uint64_t work = 0;
  std::thread([&] {
    push_context(process().device(0)->primary);
    Stream* stream = nullptr;
    ASSERT_EQ(per_thread_stream(*process().device(0)->primary, &stream), CUDA_SUCCESS);
    timeline = stream->timeline;
    auto* const handle = reinterpret_cast<CUstream>(stream);
    ASSERT_EQ(forward_cuStreamCopyAttributes(handle, handle), CUDA_SUCCESS);
    work = timeline->sent();
    EXPECT_FALSE(timeline->is_level());
  }).join();
  settle(first_session());
  EXPECT_TRUE(timeline->has_reached(work));
}

// After a reset, a new stream of the application may have the address and the id of a thread's old
// per-thread stream. The thread must not take the new stream for its own.
TEST_F(StreamsTest, APerThreadStreamThatWentWithItsContextIsNobodyElses) {
  for (const bool used_again : {true, false}) {
    (void)destroyed();
    CUstream application = nullptr;
    std::thread([&] {
      push_context(process().device(0)->primary);
      Stream* gone = nullptr;
      ASSERT_EQ(per_thread_stream(*process().device(0)->primary, &gone), CUDA_SUCCESS);
      const wire::ObjectId id = gone->id;
      retire(gone, wire::Kind::kStream);
      ASSERT_EQ(forward_cuStreamCreate(&application, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
      ASSERT_EQ(find<Stream>(application), gone);
      ASSERT_EQ(gone->id, id);
      if (used_again) {
        EXPECT_NE(resolved(CU_STREAM_PER_THREAD).id, id);
      }
    }).join();
    EXPECT_EQ(destroyed(), used_again ? 1u : 0u);
    EXPECT_NE(find<Stream>(application), nullptr);
    EXPECT_EQ(forward_cuStreamDestroy_v2(application), CUDA_SUCCESS);
  }
}

TEST_F(StreamsTest, AProgramBuiltForPerThreadStreamsMeansItsOwn) {
  std::thread([&] {
    push_context(process().device(0)->primary);
    {
      const interop::PerThreadDefaultStreamScope scope;
      EXPECT_EQ(resolved(nullptr).id, resolved(CU_STREAM_PER_THREAD).id);
      EXPECT_EQ(resolved(CU_STREAM_LEGACY).id, 0u);
      const interop::PerThreadDefaultStreamScope nested;
    }
    EXPECT_EQ(resolved(nullptr).id, 0u);
  }).join();
}

}  // namespace
}  // namespace rcuda::client
