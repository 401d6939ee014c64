// Exported functions: contexts and modules that end while other threads continue, and the ids of
// objects.
#include <cstring>
#include <set>
#include <thread>

#include <gtest/gtest.h>

#include "api/opcodes.h"
#include "client/code/functions.h"
#include "client/route/capture.h"
#include "client/route/find_route.h"
#include "common/base/peer_order.h"
#include "tests/unit/client/two_puppets.h"

namespace rcuda::client {
namespace {

class ContextTest : public TwoPuppetsTest {
 protected:
  // Calls `end`, which ends the object `id` by a command of this opcode. Returns whether `id` stays
  // taken until the worker has executed the command: an object that another thread creates before
  // that gets another id.
  template <typename End>
  bool is_taken_until(api::Opcode opcode, wire::Kind kind, wire::ObjectId id, End end) {
    bool taken = false;
    first().on(static_cast<uint16_t>(opcode), [&](const Command&) {
      taken = next_id(kind) != id;
      return test::PuppetServer::Answer{};
    });
    {
      const CaptureAnswers awaited(true);
      EXPECT_EQ(end(), CUDA_SUCCESS);
    }
    settle(first_session());
    first().on(static_cast<uint16_t>(opcode), nullptr);
    EXPECT_EQ(next_id(kind), id);  // free again
    return taken;
  }

  wire::ObjectId next_id(wire::Kind kind) {
    const wire::ObjectId id = first_session().ids().mint(kind);
    first_session().ids().release(kind, id);
    return id;
  }
};

TEST_F(ContextTest, IdsOfItsStreamsStayTakenUntilItIsDestroyed) {
  CUcontext context = nullptr;
  CUstream stream = nullptr;
  ASSERT_EQ(cuCtxCreate_v2(&context, 0, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamCreate(&stream, 0), CUDA_SUCCESS);
  const wire::ObjectId id = find<Stream>(stream)->id;
  EXPECT_TRUE(is_taken_until(api::Opcode::cuCtxDestroy_v2, wire::Kind::kStream, id,
                             [&] { return cuCtxDestroy_v2(context); }));
  EXPECT_EQ(find<Stream>(stream), nullptr);
}

TEST_F(ContextTest, IdsOfItsEventsStayTakenUntilItIsReset) {
  CUevent event = nullptr;
  ASSERT_EQ(cuEventCreate(&event, 0), CUDA_SUCCESS);
  const wire::ObjectId id = find<Event>(event)->id;
  EXPECT_TRUE(is_taken_until(api::Opcode::cuDevicePrimaryCtxReset_v2, wire::Kind::kEvent, id,
                             [] { return cuDevicePrimaryCtxReset_v2(0); }));
  EXPECT_EQ(find<Event>(event), nullptr);
}

TEST_F(ContextTest, TheIdOfAnObjectThatTheWorkerRefusesIsFreeAgain) {
  const auto opcode = static_cast<uint16_t>(api::Opcode::cuEventCreate);
  const wire::ObjectId id = next_id(wire::Kind::kEvent);
  first().on(opcode, [](const Command&) {
    return test::PuppetServer::Answer{CUDA_ERROR_OUT_OF_MEMORY, {}};
  });
  CUevent event = nullptr;
  {
    const CaptureAnswers awaited(true);
    EXPECT_EQ(cuEventCreate(&event, 0), CUDA_ERROR_OUT_OF_MEMORY);
  }
  first().on(opcode, nullptr);
  EXPECT_EQ(event, nullptr);
  EXPECT_EQ(next_id(wire::Kind::kEvent), id);
}

TEST_F(ContextTest, IdsOfAModulesFunctionsStayTakenUntilItIsUnloaded) {
  const Route route = *find_current_route();
  void *module = nullptr, *function = nullptr;
  wire::ObjectId module_id = 0, id = 0;
  ASSERT_EQ(mint(route, wire::Kind::kModule, &module, &module_id), CUDA_SUCCESS);
  ASSERT_EQ(mint(route, wire::Kind::kFunction, &function, &id), CUDA_SUCCESS);
  find<Module>(module)->functions.emplace("function", find<Function>(function));
  EXPECT_TRUE(is_taken_until(api::Opcode::cuModuleUnload, wire::Kind::kFunction, id,
                             [&] { return cuModuleUnload(static_cast<CUmodule>(module)); }));
}

// NVIDIA's runtime stores data with a context, and a destructor for them, which takes a lock of the
// runtime. Another thread may hold this lock while it calls a function about the device's state. So
// the client must not hold the device's lock when it calls the destructor.
TEST_F(ContextTest, WhatTheRuntimeKeepsWithItIsDestroyedWithoutTheDevicesLock) {
  constexpr unsigned char kStorage[] = {0xc6, 0x93, 0x33, 0x6e, 0x11, 0x21, 0xdf, 0x11,
                                        0xa8, 0xc3, 0x68, 0xf3, 0x55, 0xd8, 0x95, 0x93};
  CUuuid id{};
  std::memcpy(id.bytes, kStorage, sizeof kStorage);
  const void* table = nullptr;
  ASSERT_EQ(cuGetExportTable(&table, &id), CUDA_SUCCESS);
  using Destructor = void (*)(CUcontext, void*, void*);
  const auto put = reinterpret_cast<CUresult (*)(CUcontext, void*, void*, Destructor)>(
      static_cast<void* const*>(table)[0]);
  const auto ask = [](CUcontext, void*, void* count) {
    unsigned flags;
    int active = 0;
    EXPECT_EQ(cuDevicePrimaryCtxGetState(0, &flags, &active), CUDA_SUCCESS);
    EXPECT_EQ(active, 1);  // the context still works during the destructor
    ++*static_cast<int*>(count);
  };
  int key = 0, destroyed = 0;
  CUcontext context = nullptr;
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
  ASSERT_EQ(put(context, &key, &destroyed, ask), CUDA_SUCCESS);
  ASSERT_EQ(cuDevicePrimaryCtxReset_v2(0), CUDA_SUCCESS);
  EXPECT_EQ(destroyed, 1);
  ASSERT_EQ(cuDevicePrimaryCtxRelease_v2(0), CUDA_SUCCESS);
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
  ASSERT_EQ(put(context, &key, &destroyed, ask), CUDA_SUCCESS);
  while (cuDevicePrimaryCtxRelease_v2(0) == CUDA_SUCCESS) {
  }
  EXPECT_EQ(destroyed, 2);
}

TEST_F(ContextTest, OneThatAnotherThreadDestroyedIsNotUsed) {
  CUcontext context = nullptr;
  ASSERT_EQ(cuCtxCreate_v2(&context, 0, 0), CUDA_SUCCESS);
  std::thread([&] { EXPECT_EQ(cuCtxDestroy_v2(context), CUDA_SUCCESS); }).join();
  const auto expect_refused = [] {
    CUdevice device;
    unsigned flags;
    unsigned long long id;
    int least, greatest;
    EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    EXPECT_EQ(cuCtxGetDevice(&device), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    EXPECT_EQ(cuCtxGetFlags(&flags), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    EXPECT_EQ(cuCtxGetId(nullptr, &id), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    EXPECT_EQ(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 2048), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    EXPECT_EQ(cuCtxGetStreamPriorityRange(&least, &greatest), CUDA_ERROR_CONTEXT_IS_DESTROYED);
  };
  expect_refused();
  // A new context has the same handle. This thread's current context is still the destroyed one.
  CUcontext successor = nullptr;
  std::thread([&] { EXPECT_EQ(cuCtxCreate_v2(&successor, 0, 0), CUDA_SUCCESS); }).join();
  ASSERT_EQ(successor, context);
  expect_refused();
  CUstream stream = nullptr;
  EXPECT_EQ(cuStreamCreate(&stream, 0), CUDA_ERROR_CONTEXT_IS_DESTROYED);
  (void)pop_context();
  EXPECT_EQ(cuCtxDestroy_v2(successor), CUDA_SUCCESS);
}

TEST_F(ContextTest, IdsOfContextsAndStreamsAreNeverUsedAgain) {
  std::set<unsigned long long> contexts, streams;
  for (int i = 0; i < 3; ++i) {
    CUcontext context = nullptr;
    CUstream stream = nullptr;
    unsigned long long id = 0;
    ASSERT_EQ(cuCtxCreate_v2(&context, 0, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamCreate(&stream, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxGetId(context, &id), CUDA_SUCCESS);
    contexts.insert(id);
    EXPECT_EQ(cuStreamGetId(stream, &id), CUDA_SUCCESS);
    streams.insert(id);
    EXPECT_EQ(cuStreamGetId(nullptr, &id), CUDA_SUCCESS);
    streams.insert(id);
    EXPECT_EQ(cuCtxDestroy_v2(context), CUDA_SUCCESS);
  }
  EXPECT_EQ(contexts.size(), 3u);
  EXPECT_EQ(streams.size(), 6u);
}

TEST_F(ContextTest, AWaitForAnEventHasNoUnknownFlags) {
  CUevent event = nullptr;
  ASSERT_EQ(cuEventCreate(&event, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamWaitEvent(nullptr, event, 2), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuStreamWaitEvent(nullptr, event, CU_EVENT_WAIT_DEFAULT), CUDA_SUCCESS);
  EXPECT_EQ(cuEventDestroy_v2(event), CUDA_SUCCESS);
}

TEST_F(ContextTest, ALimitIsAskedForOnceUntilItMayHaveChanged) {
  size_t told = 1024;
  first().on(static_cast<uint16_t>(api::Opcode::cuCtxGetLimit), [&](const Command&) {
    test::PuppetServer::Answer answer;
    answer.body.resize(sizeof told);
    std::memcpy(answer.body.data(), &told, sizeof told);
    return answer;
  });
  const auto asks = [&](CUlimit limit) {
    size_t value = 0;
    EXPECT_EQ(cuCtxGetLimit(&value, limit), CUDA_SUCCESS);
    EXPECT_EQ(value, told);
    return !sent(static_cast<uint16_t>(api::Opcode::cuCtxGetLimit)).empty();
  };
  for (const CUlimit limit : {CU_LIMIT_STACK_SIZE, CU_LIMIT_PRINTF_FIFO_SIZE}) {
    EXPECT_TRUE(asks(limit));
    EXPECT_FALSE(asks(limit));
  }
  FunctionInfo function;
  function.note_launch(1);
  EXPECT_TRUE(asks(CU_LIMIT_STACK_SIZE));  // a driver may have enlarged it
  EXPECT_FALSE(asks(CU_LIMIT_PRINTF_FIFO_SIZE));
  function.note_launch(1);
  EXPECT_FALSE(asks(CU_LIMIT_STACK_SIZE));
  function.note_launch(2);
  EXPECT_TRUE(asks(CU_LIMIT_STACK_SIZE));
  told = 2048;
  before_peer(&first());
  EXPECT_EQ(cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, told), CUDA_SUCCESS);
  EXPECT_TRUE(asks(CU_LIMIT_PRINTF_FIFO_SIZE));
  EXPECT_EQ(cuDevicePrimaryCtxReset_v2(0), CUDA_SUCCESS);
  CUcontext context = nullptr;
  EXPECT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
  EXPECT_TRUE(asks(CU_LIMIT_PRINTF_FIFO_SIZE));
  EXPECT_EQ(cuDevicePrimaryCtxRelease_v2(0), CUDA_SUCCESS);
  first().on(static_cast<uint16_t>(api::Opcode::cuCtxGetLimit), nullptr);
}

}  // namespace
}  // namespace rcuda::client
