// Hostile rings against a whole session, on a driver that does nothing: the session fuzzer's corpus
// and fixed mutations of it. Nothing may be read or written out of bounds (run under
// AddressSanitizer to check).
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "api/server_commands.h"
#include "common/base/log.h"
#include "server/executor/core/executor.h"
#include "tests/fuzz/mutate.h"
#include "tests/fuzz/session_target.h"

namespace rcuda {
namespace {

bool run(const std::string& input) {
  return fuzz::fuzz_session(reinterpret_cast<const uint8_t*>(input.data()), input.size());
}

using fuzz::command;
using fuzz::well_formed_session;

class HostileSessionTest : public testing::Test {
 protected:
  // Each refused session would log a line.
  void SetUp() override { set_log_level("off"); }
  void TearDown() override {
    set_log_level("warn");
    // As at the end of a worker's process: an executor keeps pages that it has exposed.
    ::munmap(reinterpret_cast<void*>(fuzz::World::kHostRange), fuzz::World::kHostRangeBytes);
  }
};

// An executor without a client.
struct LoneExecutor {
  fuzz::MemoryLink link{fuzz::World::get().worker_window, fuzz::World::get().client_window};
  server::ImageCache images{{}, 0};
  server::Executor executor{fuzz::World::get().resources(link, images)};
};
constexpr server::ReplyTarget kReply{1, wire::ClientWindow::kSmallReplies,
                                     wire::ClientWindow::kSmallReplyBytes};

TEST_F(HostileSessionTest, AWellFormedSessionIsServed) {
  fuzz::reached = {};
  EXPECT_TRUE(run(well_formed_session()));
  EXPECT_EQ(fuzz::reached.launches, 1);
  EXPECT_EQ(fuzz::reached.copies, 4);
  EXPECT_EQ(fuzz::reached.host_functions, 3) << "two fetches, and one of the client's";
}

TEST_F(HostileSessionTest, AWaitOverSharedMemoryHasAMark) {
  fuzz::reached = {};
  EXPECT_TRUE(run("\3" + well_formed_session().substr(1)));
  EXPECT_EQ(fuzz::reached.marks, 1);
}

// Other inaccessible memory of this process must not be given to the client.
TEST_F(HostileSessionTest, ExposedMemoryTakesNoAddressesThatAreInUse) {
  void* const wanted = reinterpret_cast<void*>(fuzz::World::kHostRange + 4096);
  auto* const guard =
      static_cast<std::byte*>(::mmap(wanted, 4096, PROT_READ | PROT_WRITE,
                                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0));
  ASSERT_EQ(guard, wanted);
  *guard = std::byte{42};
  ASSERT_EQ(::mprotect(guard, 4096, PROT_NONE), 0);
  fuzz::World::get().clears_host_range = false;
  EXPECT_TRUE(run(well_formed_session()));
  fuzz::World::get().clears_host_range = true;
  ASSERT_EQ(::mprotect(guard, 4096, PROT_READ), 0);
  EXPECT_EQ(*guard, std::byte{42});
  ::munmap(guard, 4096);
}

#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)  // these need memory themselves
TEST_F(HostileSessionTest, NoRoomForExposedMemoryIsOutOfMemory) {
  LoneExecutor lone;
  const wire::HostExposeBody body{fuzz::World::kHostRange, 4096, 1, 0, 0, 0};
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_AS, &before), 0);
  const rlimit none{0, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &none), 0);
  const CUresult result = lone.executor.host_memory.expose(body);
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &before), 0);
  EXPECT_EQ(result, CUDA_ERROR_OUT_OF_MEMORY);
}
#endif

// Managed memory at both ends, and device memory, which the CPU cannot read, in between.
TEST_F(HostileSessionTest, AMirrorLiesInMemoryOfTheHostFromEndToEnd) {
  constexpr CUdeviceptr kFirst = 0x10000, kEach = 0x10000;
  fuzz::World& world = fuzz::World::get();
  const auto before = world.driver.cuPointerGetAttribute;
  world.driver.cuPointerGetAttribute = [](void* data, CUpointer_attribute attribute,
                                          CUdeviceptr address) {
    if (attribute == CU_POINTER_ATTRIBUTE_IS_MANAGED) {
      *static_cast<unsigned*>(data) = address / kEach != kFirst / kEach + 1;
    } else if (attribute == CU_POINTER_ATTRIBUTE_RANGE_START_ADDR) {
      *static_cast<CUdeviceptr*>(data) = address / kEach * kEach;
    } else if (attribute == CU_POINTER_ATTRIBUTE_RANGE_SIZE) {
      *static_cast<size_t*>(data) = kEach;
    }
    return CUDA_SUCCESS;
  };
  {
    LoneExecutor lone;
    const auto refuses = [&](size_t bytes) {
      return lone.executor.mirrors.add({kFirst + 8, bytes - 8, 1, 0}, kReply).result ==
             CUDA_ERROR_INVALID_VALUE;
    };
    EXPECT_TRUE(refuses(3 * kEach));
    EXPECT_TRUE(refuses(2 * kEach));
    EXPECT_FALSE(refuses(kEach));
  }
  world.driver.cuPointerGetAttribute = before;
}

// A client does not end its mirrors before their context. The page-locked memory of the digests
// ends with the context, so the worker must free this memory before the context ends.
TEST_F(HostileSessionTest, AMirrorOfManagedMemoryEndsWithItsContext) {
  static int allocated;
  allocated = 0;
  fuzz::World& world = fuzz::World::get();
  const api::DriverTable before = world.driver;
  world.driver.cuPointerGetAttribute = [](void* data, CUpointer_attribute attribute, CUdeviceptr) {
    if (attribute == CU_POINTER_ATTRIBUTE_IS_MANAGED) *static_cast<unsigned*>(data) = 1;
    if (attribute == CU_POINTER_ATTRIBUTE_RANGE_START_ADDR) *static_cast<CUdeviceptr*>(data) = 0;
    if (attribute == CU_POINTER_ATTRIBUTE_RANGE_SIZE) *static_cast<size_t*>(data) = SIZE_MAX;
    return CUDA_SUCCESS;
  };
  world.driver.cuMemHostAlloc = [](void** memory, size_t bytes, unsigned) {
    ++allocated;
    *memory = std::malloc(bytes);
    return CUDA_SUCCESS;
  };
  world.driver.cuMemFreeHost = [](void* memory) {
    --allocated;
    std::free(memory);
    return CUDA_SUCCESS;
  };
  {
    constexpr CUdeviceptr kAddress = 1 << 20;
    constexpr size_t kBytes = 1 << 20;
    LoneExecutor lone;
    ASSERT_EQ(lone.executor.objects.make_current(wire::primary_context_id(0)), CUDA_SUCCESS);
    ASSERT_EQ(lone.executor.mirrors.add({kAddress, kBytes, 1, kBytes}, kReply).result,
              CUDA_SUCCESS);
    EXPECT_TRUE(lone.executor.mirrors.covers(kAddress, kBytes));
    EXPECT_EQ(allocated, 1);
    lone.executor.mirrors.forget_context(*lone.executor.objects.current_context());
    EXPECT_FALSE(lone.executor.mirrors.covers(kAddress, kBytes));
    EXPECT_EQ(allocated, 0);
    EXPECT_EQ(lone.executor.mirrors.changes(kAddress, kReply).result, CUDA_ERROR_INVALID_VALUE);
  }
  world.driver = before;
}

// A Link whose connection may be lost for a while, and whose peer has one region.
class LossyLink final : public fuzz::MemoryLink {
 public:
  LossyLink()
      : MemoryLink(fuzz::World::get().worker_window, fuzz::World::get().client_window),
        region(8192) {}
  bool is_connected() const override { return connected; }
  void write(transport::RegionId, uint64_t offset, const void* local, size_t bytes,
             transport::TransferDone done) override {
    std::memcpy(region.data() + offset, local, bytes);
    done({});
  }
  void read(transport::RegionId, uint64_t offset, void* local, size_t bytes,
            transport::TransferDone done) override {
    std::memcpy(local, region.data() + offset, bytes);
    done({});
  }

  std::vector<std::byte> region;
  std::atomic<bool> connected{true};
};

// The client sends a patch, its host function then changes the same byte, and the connection that
// carries the patch is lost for longer than the worker waits while it is connected.
TEST_F(HostileSessionTest, AHostFunctionsBytesWaitForPatchesOfALostConnection) {
  constexpr auto kOutage = std::chrono::milliseconds(300);
  LossyLink link;
  server::ImageCache images{{}, 0};
  server::Executor executor{fuzz::World::get().resources(link, images)};
  const wire::HostExposeBody exposed{fuzz::World::kHostRange, 4096, 1, 0, 0, 0};
  ASSERT_EQ(executor.host_memory.expose(exposed), CUDA_SUCCESS);
  ASSERT_EQ(executor.mirrors.add({exposed.address, exposed.bytes, 2, 0, 0}, kReply).result,
            CUDA_SUCCESS);
  auto* const memory = reinterpret_cast<std::byte*>(exposed.address);
  std::promise<uint64_t> lent;
  std::promise<void> function_ran;
  std::thread driver([&] {  // a Loan begins and ends on one thread
    const server::Mirrors::Loan loan(executor.mirrors);
    lent.set_value(loan.number());
    function_ran.get_future().wait();
  });
  const uint64_t number = lent.get_future().get();
  EXPECT_NE(number, 0u);
  constexpr std::byte kOfPatch{5}, kOfFunction{6};
  link.region[16] = kOfFunction;
  const wire::MirrorLoan returned{number, 1};
  std::memcpy(&link.region[wire::MirrorLoan::offset(exposed.bytes)], &returned, sizeof returned);
  link.connected = false;
  function_ran.set_value();
  std::this_thread::sleep_for(kOutage);
  EXPECT_EQ(memory[16], std::byte{0}) << "the patch has not arrived";
  std::vector<std::byte> bytes(8);
  bytes[0] = kOfPatch;
  const uint8_t mask = 1;
  const std::vector<wire::BlockDigest> digests{wire::BlockDigest::none()};
  EXPECT_EQ(executor.mirrors.patch({exposed.address, 16, 1, 8, 0}, bytes, &mask, digests),
            CUDA_SUCCESS);
  link.connected = true;
  driver.join();
  EXPECT_EQ(memory[16], kOfFunction);
}

// A client does not end the mirrors of memory that it withdraws.
TEST_F(HostileSessionTest, AMirrorOfExposedMemoryEndsWithIt) {
  LoneExecutor lone;
  const wire::HostExposeBody exposed{fuzz::World::kHostRange, 4096, 1, 0, 0, 0};
  ASSERT_EQ(lone.executor.host_memory.expose(exposed), CUDA_SUCCESS);
  ASSERT_EQ(lone.executor.mirrors.add({exposed.address, exposed.bytes, 2, 0, 0}, kReply).result,
            CUDA_SUCCESS);
  EXPECT_TRUE(lone.executor.mirrors.covers(exposed.address, exposed.bytes));
  const wire::HostUnexposeBody taken{exposed.address, exposed.region};
  const wire::CommandHeader header{};
  EXPECT_EQ(
      server::host_unexpose(lone.executor.memory_services, {header, {}, kReply}, taken).result,
      CUDA_SUCCESS);
  EXPECT_FALSE(lone.executor.mirrors.covers(exposed.address, exposed.bytes));
}

#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)  // these need memory themselves
// A host function must not run with older bytes, and an exception must not reach the driver.
TEST_F(HostileSessionTest, ALoanWithoutMemoryEndsTheSession) {
  std::vector<std::byte> memory(64 << 20);
  fuzz::World& world = fuzz::World::get();
  const auto before = world.driver.cuPointerGetAttribute;
  world.driver.cuPointerGetAttribute = [](void* data, CUpointer_attribute attribute, CUdeviceptr) {
    if (attribute == CU_POINTER_ATTRIBUTE_IS_MANAGED) *static_cast<unsigned*>(data) = 1;
    if (attribute == CU_POINTER_ATTRIBUTE_RANGE_START_ADDR) *static_cast<CUdeviceptr*>(data) = 0;
    if (attribute == CU_POINTER_ATTRIBUTE_RANGE_SIZE) *static_cast<size_t*>(data) = SIZE_MAX;
    return CUDA_SUCCESS;
  };
  LoneExecutor lone;
  // The address is not at the beginning of a block, so the worker does not track changes.
  const auto address = reinterpret_cast<uintptr_t>(memory.data()) / 4096 * 4096 + 4096 + 8;
  const auto added = lone.executor.mirrors.add({address, memory.size() - 8192, 1, 0}, kReply);
  world.driver.cuPointerGetAttribute = before;
  ASSERT_EQ(added.result, CUDA_SUCCESS);
  ::malloc_trim(0);  // the heap may still have memory that earlier tests have freed
  rlimit room{};
  ASSERT_EQ(::getrlimit(RLIMIT_AS, &room), 0);
  const rlimit none{0, room.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &none), 0);
  uint64_t number = 1;
  {
    const server::Mirrors::Loan loan(lone.executor.mirrors);
    number = loan.number();
  }
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &room), 0);
  EXPECT_EQ(number, 0u);
  EXPECT_FALSE(lone.link.status().ok());
}
#endif

TEST_F(HostileSessionTest, EveryTruncationEnds) {
  const std::string whole = well_formed_session();
  for (size_t size = 1; size < whole.size(); ++size) run(whole.substr(0, size));
}

TEST_F(HostileSessionTest, MutationsStayInBounds) {
  fuzz::Mutator mutator(3);
  const std::string whole = well_formed_session();
  int accepted = 0, refused = 0;
  for (int round = 0; round < 20000; ++round) {
    const char* const kind = round % 2 == 0 ? "\1" : "\3";
    (run(kind + mutator.mutate(whole.substr(1))) ? accepted : refused) += 1;
  }
  EXPECT_GT(accepted, 0);
  EXPECT_GT(refused, 0);
}

TEST_F(HostileSessionTest, RandomCommandsStayInBounds) {
  std::mt19937 random(17);
  for (int round = 0; round < 2000; ++round) {
    std::string text(1, static_cast<char>(1 + round % 3));
    for (int i = 0; i < 20; ++i) {
      const uint16_t opcode = fuzz::opcodes()[random() % fuzz::opcodes().size()];
      std::string body(random() % 300, '\0');
      for (char& c : body)
        c = random() % 3 ? '\0' : static_cast<char>(random() % 5 ? random() % 4 : random());
      text += command(opcode, static_cast<uint8_t>(random() & 31), body);
    }
    run(text);
  }
}

TEST_F(HostileSessionTest, RingsOfAnythingEnd) {
  std::mt19937 random(29);
  for (int round = 0; round < 2000; ++round) {
    std::string text(1 + random() % 512, '\0');
    for (size_t i = 1; i < text.size(); ++i)
      text[i] = static_cast<char>(random() % 2 ? random() : 0);
    run(text);
  }
}

}  // namespace
}  // namespace rcuda
