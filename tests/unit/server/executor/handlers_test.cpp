// Calls handlers without a session, with a driver that does no work.
#include <cstdlib>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "api/server_handlers.h"
#include "server/executor/core/custom.h"
#include "server/executor/core/executor.h"
#include "tests/fuzz/session_target.h"

namespace rcuda::server {
namespace {

template <typename Handle>
Handle handle(uintptr_t number) {
  return reinterpret_cast<Handle>(number);
}

class ModuleHandlersTest : public testing::Test {
 protected:
  ModuleHandlersTest() {
    driver_.cuLibraryUnload = [](CUlibrary) { return CUDA_SUCCESS; };
    driver_.cuLibraryGetModule = [](CUmodule* module, CUlibrary library) {
      *module = handle<CUmodule>(reinterpret_cast<uintptr_t>(library) + 1);
      return CUDA_SUCCESS;
    };
    resources_.unmetered = &driver_;
    restart();
  }
  // Makes a new executor after a change of the driver's entries, which an executor copies.
  void restart() { executor_.emplace(resources_); }
  ObjectTable& table(wire::Kind kind) { return executor_->objects.of(kind); }
  // Adds an object that a library or module owns.
  void add(wire::Kind kind, wire::ObjectId id, void* at, wire::Kind owner_kind,
           wire::ObjectId owner) {
    ASSERT_TRUE(executor_->objects.bind(kind, id, at));
    table(kind).find(id)->owner_kind = owner_kind;
    table(kind).find(id)->owner = owner;
  }

  fuzz::World& world_ = fuzz::World::get();
  fuzz::MemoryLink link_{world_.worker_window, world_.client_window};
  ImageCache images_{{}, 0};
  api::DriverTable driver_ = world_.driver;
  SessionResources resources_ = world_.resources(link_, images_);
  std::optional<Executor> executor_;
};

// After an unload, the driver may reuse the handles for other code. So their ids must be free.
TEST_F(ModuleHandlersTest, UnloadingALibraryGivesBackTheIdsOfAllThatIsInIt) {
  for (const uintptr_t library : {0x100, 0x200}) {
    ASSERT_TRUE(executor_->objects.bind(wire::Kind::kLibrary,
                                        static_cast<wire::ObjectId>(library / 0x100),
                                        handle<void*>(library)));
    CUmodule module = nullptr;
    ASSERT_EQ(
        serve_cuLibraryGetModule(executor_->module_services, &module, handle<CUlibrary>(library)),
        CUDA_SUCCESS);
    EXPECT_EQ(module, handle<CUmodule>(library + 1));
    const auto owner = static_cast<wire::ObjectId>(library / 0x100);
    add(wire::Kind::kKernel, owner, handle<void*>(library + 2), wire::Kind::kLibrary, owner);
    add(wire::Kind::kFunction, owner, handle<void*>(library + 3), wire::Kind::kModule,
        table(wire::Kind::kModule).id_of(module));
  }
  ASSERT_EQ(serve_cuLibraryUnload(executor_->module_services, handle<CUlibrary>(0x100)),
            CUDA_SUCCESS);
  EXPECT_EQ(table(wire::Kind::kModule).id_of(handle<void*>(0x101)), 0u);
  EXPECT_EQ(table(wire::Kind::kKernel).id_of(handle<void*>(0x102)), 0u);
  EXPECT_EQ(table(wire::Kind::kFunction).id_of(handle<void*>(0x103)), 0u);
  // The other library keeps its objects.
  EXPECT_NE(table(wire::Kind::kModule).id_of(handle<void*>(0x201)), 0u);
  EXPECT_EQ(table(wire::Kind::kKernel).id_of(handle<void*>(0x202)), 2u);
  EXPECT_EQ(table(wire::Kind::kFunction).id_of(handle<void*>(0x203)), 2u);
}

TEST_F(ModuleHandlersTest, LinkStatesEndWithTheirContext) {
  driver_.cuLinkCreate_v2 = [](unsigned, CUjit_option*, void**, CUlinkState* state) {
    *state = handle<CUlinkState>(0x400);
    return CUDA_SUCCESS;
  };
  restart();
  ASSERT_EQ(executor_->objects.make_current(wire::primary_context_id(0)), CUDA_SUCCESS);
  CUlinkState state = nullptr;
  ASSERT_EQ(serve_rcuda_link_create(executor_->module_services, 0, nullptr, nullptr, 8, 8, &state),
            CUDA_SUCCESS);
  ASSERT_NE(executor_->links.find(state), nullptr);
  ASSERT_EQ(serve_cuDevicePrimaryCtxReset_v2(executor_->context_services, 0), CUDA_SUCCESS);
  EXPECT_EQ(executor_->links.find(state), nullptr);
}

// Only the first launch of a function in a context may wait for the device.
TEST_F(ModuleHandlersTest, ALaunchIsInTheContextOfItsStream) {
  const wire::ObjectId in_stream = wire::primary_context_id(0), other = in_stream + 1;
  ASSERT_EQ(executor_->objects.make_current(in_stream), CUDA_SUCCESS);
  ASSERT_TRUE(executor_->objects.bind(wire::Kind::kStream, 1, handle<void*>(0x500)));
  ASSERT_TRUE(executor_->objects.bind(wire::Kind::kFunction, 1, handle<void*>(0x600)));
  table(wire::Kind::kFunction).find(1)->launched_in = in_stream;
  wire::LaunchBody body{};
  body.function = 1;
  wire::CommandHeader header{};
  const auto may_wait = [&](wire::ObjectId stream, wire::ObjectId current) {
    body.stream = stream;
    header.context = current;
    return custom_command(static_cast<uint16_t>(wire::Custom::kLaunch))
        ->may_wait(*executor_, {header, std::as_bytes(std::span(&body, 1)), {}});
  };
  EXPECT_FALSE(may_wait(1, in_stream));
  EXPECT_FALSE(may_wait(1, other));
  EXPECT_FALSE(may_wait(0, in_stream));
  EXPECT_TRUE(may_wait(0, other));
}

// A session with a peer worker that never connects.
class PeerHandlersTest : public ModuleHandlersTest {
 protected:
  PeerHandlersTest() {
    // For the engine, which allocates its words.
    driver_.cuMemHostAlloc = [](void** memory, size_t bytes, unsigned) {
      *memory = std::aligned_alloc(64, bytes);
      return CUDA_SUCCESS;
    };
    driver_.cuMemFreeHost = [](void* memory) {
      std::free(memory);
      return CUDA_SUCCESS;
    };
  }
  ContextState* context() { return executor_->objects.find_context(wire::primary_context_id(0)); }
  void introduce() {
    PeerHub::Introduction introduction;
    introduction.link = kLink;
    introduction.worker = 1;
    ASSERT_TRUE(executor_->peers.introduce(introduction, {{0, context()->handle}}).ok());
  }

  static constexpr p2p::PeerId kLink = 1;
};

// The copy's stream is a third worker's, so this worker passes the error on with the signal. The
// error comes at once, or at the end of the copy.
TEST_F(PeerHandlersTest, ACopyLeavesItsErrorToTheSignal) {
  ASSERT_EQ(executor_->objects.make_current(context()->id), CUDA_SUCCESS);
  ASSERT_TRUE(executor_->objects.bind(wire::Kind::kStream, 1, handle<void*>(0x300)));
  introduce();
  for (const bool refused : {true, false}) {
    wire::PeerCopyBody body{};
    body.id = refused ? 1 : 2;
    body.link = refused ? kLink + 1 : kLink;
    body.flags =
        wire::kPeerOutgoing | wire::kPeerInStream | wire::kPeerHolds | wire::kPeerSignalled;
    body.address = fuzz::kDeviceBase;
    body.width_bytes = 64;
    body.height = body.depth = 1;
    body.stream = 1;
    const wire::CommandHeader header{};
    std::vector<std::byte> reply;
    const HandlerResult result =
        custom_command(static_cast<uint16_t>(wire::Custom::kPeerCopy))
            ->run(*executor_, {header, std::as_bytes(std::span(&body, 1)), {}}, &reply);
    EXPECT_EQ(result.result, CUDA_SUCCESS);  // no error of this session
    const PeerHub::Outcome outcome = executor_->peers.take_outcome(body.id);
    ASSERT_NE(outcome, nullptr);
    EXPECT_EQ(outcome->ok(), !refused);
    executor_->peers.shut();
    EXPECT_FALSE(outcome->ok());
    introduce();
  }
  EXPECT_EQ(executor_->peers.take_outcome(1), nullptr);
}

// Counts the modules that the driver has unloaded.
class UnloadTest : public PeerHandlersTest {
 protected:
  static CUresult count(CUmodule) {
    ++unloaded;
    return CUDA_SUCCESS;
  }
  UnloadTest() {
    unloaded = 0;
    driver_.cuModuleUnload = count;
    restart();
  }
  void hold() {
    introduce();
    p2p::PeerCopy copy;
    copy.id = 1;
    copy.peer = kLink;
    copy.outgoing = true;
    copy.memory = p2p::Shape::plain(fuzz::kDeviceBase, 4096);
    copy.stream = CudaDeviceOps::stream_ref(handle<CUstream>(0x300), context()->handle);
    ASSERT_TRUE(executor_->peers.copy(std::move(copy), {}).ok());
    ASSERT_TRUE(executor_->peers.holding());
  }
  void unload() {
    ASSERT_EQ(executor_->objects.make_current(wire::primary_context_id(0)), CUDA_SUCCESS);
    ASSERT_EQ(serve_cuModuleUnload(executor_->module_services, handle<CUmodule>(0x100)),
              CUDA_SUCCESS);
  }

  static inline int unloaded = 0;
};

TEST_F(UnloadTest, CodeIsUnloadedAtOnceIfNothingIsUnderWay) {
  unload();
  EXPECT_EQ(unloaded, 1);
}

// An unload would wait for the held stream and block the engine, which must end the copy that holds
// the stream.
TEST_F(UnloadTest, CodeIsNotUnloadedWhileAStreamIsHeld) {
  hold();
  unload();
  while (executor_->jobs.run()) {
  }
  EXPECT_FALSE(executor_->device_waits.run_freed());
  EXPECT_EQ(unloaded, 0);
  EXPECT_TRUE(executor_->device_waits.any());
  executor_->peers.shut();
  EXPECT_TRUE(executor_->device_waits.run_freed());
  EXPECT_EQ(unloaded, 1);
}

// A reset ends the context's modules. Then the driver may reuse their handles, so they must not be
// unloaded later.
TEST_F(UnloadTest, AModuleThatEndedWithItsContextIsNotUnloaded) {
  hold();
  unload();
  while (executor_->jobs.run()) {
  }
  ASSERT_EQ(serve_cuDevicePrimaryCtxReset_v2(executor_->context_services, 0), CUDA_SUCCESS);
  EXPECT_TRUE(executor_->device_waits.run_freed());
  EXPECT_EQ(unloaded, 0);
}

}  // namespace
}  // namespace rcuda::server
