// Freeing device memory: the client removes it from its registry before the worker frees it in the
// context that owns it.
#include <gtest/gtest.h>

#include "api/opcodes.h"
#include "client/objects/kinds.h"
#include "client/session/capture_answers.h"
#include "tests/unit/client/two_puppets.h"

namespace rcuda::client {
namespace {

using Answer = test::PuppetServer::Answer;

// The memory belongs to device 2, the second device of the first server. The current context is of
// device 0, of the same server.
class FreeTest : public TwoPuppetsTest {
 protected:
  static constexpr size_t kBytes = 4096;

  void TearDown() override {
    for (const api::Opcode opcode :
         {api::Opcode::cuMemFree_v2, api::Opcode::cuMemFreeAsync, api::Opcode::cuMemUnmap,
          api::Opcode::cuIpcCloseMemHandle, api::Opcode::cuMemAddressFree}) {
      first().on(static_cast<uint16_t>(opcode), nullptr);
    }
    (void)memory().remove(address());
    TwoPuppetsTest::TearDown();
  }

  Registry& memory() { return process().memory(); }
  CUdeviceptr address() { return first_session().welcome().windows.front().base + 0x3000000; }
  wire::ObjectId owner() { return process().device(2)->primary->id; }
  CUdeviceptr add(Placement placement, unsigned openings = 0) {
    Allocation allocation;
    allocation.base = address();
    allocation.bytes = kBytes;
    allocation.placement = placement;
    allocation.session = &first_session();
    allocation.context = owner();
    allocation.device = 2;
    allocation.openings = openings;
    EXPECT_TRUE(memory().add(allocation));
    return allocation.base;
  }
  bool is_known() { return memory().find(address()).has_value(); }

  struct Seen {
    wire::ObjectId context = 0;
    bool known = true;  // the client knew the memory when the worker got the command
  };
  // Records the worker's view of the next command of this kind. The worker answers with `result`.
  void watch(api::Opcode opcode, Seen* seen, CUresult result = CUDA_SUCCESS) {
    first().on(static_cast<uint16_t>(opcode), [this, seen, result](const Command& command) {
      *seen = {command.header.context, is_known()};
      return Answer{result, {}};
    });
  }
};

TEST_F(FreeTest, GoesToTheContextOfTheMemory) {
  Seen seen;
  watch(api::Opcode::cuMemFree_v2, &seen);
  add(Placement::kDevice);
  EXPECT_EQ(ordered_with(first(), [&] { return cuMemFree_v2(address()); }), CUDA_SUCCESS);
  EXPECT_EQ(seen.context, owner());
  EXPECT_FALSE(seen.known);
}

TEST_F(FreeTest, OfAnotherServerGoesToTheContextOfTheMemory) {
  push_context(process().device(1)->primary);
  add(Placement::kDeviceAsync);
  constexpr auto kOpcode = static_cast<uint16_t>(api::Opcode::cuMemFreeAsync);
  (void)sent(kOpcode);
  EXPECT_EQ(ordered_with(first(), [&] { return cuMemFreeAsync(address(), nullptr); }),
            CUDA_SUCCESS);
  const auto commands = sent(kOpcode);
  ASSERT_EQ(commands.size(), 1u);
  EXPECT_EQ(commands[0].header.context, owner());
  EXPECT_FALSE(is_known());
  pop_context();
}

TEST_F(FreeTest, MappedMemoryIsForgottenBeforeItEnds) {
  Seen seen;
  watch(api::Opcode::cuMemUnmap, &seen);
  add(Placement::kMapped);
  EXPECT_EQ(ordered_with(first(), [&] { return cuMemUnmap(address(), kBytes); }), CUDA_SUCCESS);
  EXPECT_EQ(seen.context, owner());
  EXPECT_FALSE(seen.known);
}

TEST_F(FreeTest, MemoryOfAnotherProcessIsForgottenBeforeItsLastClose) {
  Seen seen;
  watch(api::Opcode::cuIpcCloseMemHandle, &seen);
  add(Placement::kMapped, 2);
  EXPECT_EQ(ordered_with(first(), [&] { return cuIpcCloseMemHandle(address()); }), CUDA_SUCCESS);
  EXPECT_TRUE(seen.known);
  EXPECT_EQ(ordered_with(first(), [&] { return cuIpcCloseMemHandle(address()); }), CUDA_SUCCESS);
  EXPECT_EQ(seen.context, owner());
  EXPECT_FALSE(seen.known);
  EXPECT_EQ(ordered_with(first(), [&] { return cuIpcCloseMemHandle(address()); }),
            CUDA_ERROR_INVALID_VALUE);
}

// Another thread may open the memory while the command of its last close is in flight.
TEST_F(FreeTest, ARefusedCloseCountsWithOpeningsOfOtherThreads) {
  for (const unsigned openings : {1u, 2u}) {
    first().on(static_cast<uint16_t>(api::Opcode::cuIpcCloseMemHandle), [&](const Command&) {
      if (openings == 1) {
        add(Placement::kMapped, 1);  // opened
      } else {
        EXPECT_TRUE(memory().remove(address()));  // closed
      }
      return Answer{CUDA_ERROR_INVALID_VALUE, {}};
    });
    add(Placement::kMapped, openings);
    EXPECT_EQ(ordered_with(first(), [&] { return cuIpcCloseMemHandle(address()); }),
              CUDA_ERROR_INVALID_VALUE);
    ASSERT_TRUE(is_known());
    EXPECT_EQ(memory().find(address())->openings, openings == 1 ? 2u : 1u);
    EXPECT_TRUE(memory().remove(address()));
  }
}

TEST_F(FreeTest, AReservationIsForgottenBeforeItEnds) {
  bool is_reserved = true;
  first().on(static_cast<uint16_t>(api::Opcode::cuMemAddressFree), [&](const Command&) {
    is_reserved = memory().reservation(address()).has_value();
    return Answer{};
  });
  ASSERT_TRUE(memory().reserve(address(), kBytes, &first_session()));
  EXPECT_EQ(ordered_with(first(), [&] { return cuMemAddressFree(address(), kBytes); }),
            CUDA_SUCCESS);
  EXPECT_FALSE(is_reserved);
}

TEST_F(FreeTest, ARefusedCallLeavesTheMemoryKnown) {
  Seen seen;
  for (const api::Opcode opcode :
       {api::Opcode::cuMemFree_v2, api::Opcode::cuMemUnmap, api::Opcode::cuIpcCloseMemHandle,
        api::Opcode::cuMemAddressFree}) {
    watch(opcode, &seen, CUDA_ERROR_INVALID_VALUE);
  }
  add(Placement::kDevice);
  EXPECT_EQ(ordered_with(first(), [&] { return cuMemFree_v2(address()); }),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_TRUE(memory().remove(address()));
  add(Placement::kMapped, 1);
  EXPECT_EQ(ordered_with(first(), [&] { return cuMemUnmap(address(), kBytes); }),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(ordered_with(first(), [&] { return cuIpcCloseMemHandle(address()); }),
            CUDA_ERROR_INVALID_VALUE);
  ASSERT_TRUE(is_known());
  EXPECT_EQ(memory().find(address())->openings, 1u);
  ASSERT_TRUE(memory().reserve(address(), kBytes, &first_session()));
  EXPECT_EQ(ordered_with(first(), [&] { return cuMemAddressFree(address(), kBytes); }),
            CUDA_ERROR_INVALID_VALUE);
  const auto reserved = memory().unreserve(address());
  ASSERT_TRUE(reserved);
  EXPECT_EQ(reserved->session, &first_session());
  EXPECT_EQ(reserved->bytes, kBytes);
}

// With RCUDA_SYNC and during captures, the result is that of this free, not of an earlier command.
TEST_F(FreeTest, ARefusedFreeInStreamOrderLeavesTheMemoryKnown) {
  Seen seen;
  watch(api::Opcode::cuMemFreeAsync, &seen, CUDA_ERROR_INVALID_VALUE);
  add(Placement::kDeviceAsync);
  const CaptureAnswers answers(true);
  EXPECT_EQ(ordered_with(first(), [&] { return cuMemFreeAsync(address(), nullptr); }),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_TRUE(is_known());
}

}  // namespace
}  // namespace rcuda::client
