// Commands that no client would send: the session ends or the command returns an error; nothing
// crashes.
#include <cstring>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "api/opcodes.h"
#include "api/traits.h"
#include "common/wire/codec.h"
#include "common/wire/protocol.h"
#include "tests/support/session_harness.h"

namespace rcuda::server {
namespace {

using test::SessionHarness;
using wire::Custom;

struct CommandToTry {
  Custom opcode;
  size_t body_bytes;
};

// Every custom command that has a body.
std::vector<CommandToTry> commands() {
  std::vector<CommandToTry> list;
  for (size_t opcode = 0; opcode < std::size(api::kCustomTraits); ++opcode) {
    const size_t bytes = api::kCustomTraits[opcode].body_bytes;
    if (bytes != 0) list.push_back({static_cast<Custom>(opcode), bytes});
  }
  return list;
}

TEST(HostileTest, ATruncatedBodyEndsTheSession) {
  for (const CommandToTry& command : commands()) {
    for (size_t bytes : {size_t{0}, size_t{1}, command.body_bytes - 1}) {
      SessionHarness session;
      const std::vector<std::byte> body(bytes);
      EXPECT_FALSE(session.client().call(static_cast<uint16_t>(command.opcode), body))
          << static_cast<int>(command.opcode) << " of " << bytes << " bytes";
      EXPECT_EQ(session.wait_end().code(), Code::kProtocol)
          << static_cast<int>(command.opcode) << " of " << bytes << " bytes";
    }
  }
}

TEST(HostileTest, HugeNumbersEndTheSessionOrAreRefused) {
  for (const CommandToTry& command : commands()) {
    SessionHarness session;
    const std::vector<std::byte> body(command.body_bytes + 64, std::byte{0xff});
    auto answer = session.client().call(static_cast<uint16_t>(command.opcode), body);
    if (answer) {
      EXPECT_NE(answer->result, CUDA_SUCCESS) << static_cast<int>(command.opcode);
      EXPECT_TRUE(session.end().ok());
    } else {
      EXPECT_EQ(session.wait_end().code(), Code::kProtocol) << static_cast<int>(command.opcode);
    }
  }
}

// In the command table these commands are calls. The test sends them as posted commands.
TEST(HostileTest, ACallThatNobodyWaitsForEndsTheSession) {
  for (const Custom opcode : {Custom::kPing, Custom::kCopyToReply, Custom::kModuleLoad}) {
    SessionHarness session;
    const std::vector<std::byte> body(api::traits_of(opcode).body_bytes);
    ASSERT_TRUE(session.client().post(static_cast<uint16_t>(opcode), body).ok());
    EXPECT_EQ(session.wait_end().code(), Code::kProtocol) << static_cast<int>(opcode);
  }
}

TEST(HostileTest, UnknownOpcodesEndTheSession) {
  for (uint16_t opcode : {0, 0x60, 0xff, 0x0fff, 0xffff}) {
    SessionHarness session;
    EXPECT_FALSE(session.client().call(opcode, {}));
    EXPECT_EQ(session.wait_end().code(), Code::kProtocol) << opcode;
  }
}

TEST(HostileTest, AFrameWithoutAHeaderEndsTheSession) {
  SessionHarness session;
  const std::vector<std::byte> frame(sizeof(wire::CommandHeader) - 1);
  wire::RingWriter ring(session.client().link(), wire::kCommandRingLayout);
  ASSERT_TRUE(ring.append(frame, {}, transport::Wake::kYes).ok());
  EXPECT_EQ(session.wait_end().code(), Code::kProtocol);
}

TEST(HostileTest, RepliesGoIntoReplySlotsOnly) {
  using Window = wire::ClientWindow;
  const struct {
    uint64_t slot;
    uint32_t bytes;
  } kSlots[] = {
      {0, Window::kSmallReplyBytes},
      {Window::kCommandRingConsumed, Window::kSmallReplyBytes},
      {Window::kSmallReplies + 8, Window::kSmallReplyBytes},
      {Window::kSmallReplies, Window::kLargeReplyBytes},
      {Window::kSmallReplies, 0},
      {Window::kLargeReplies + uint64_t{Window::kLargeReplyCount} * Window::kLargeReplyBytes,
       Window::kLargeReplyBytes},
      {Window::kEventRing, Window::kLargeReplyBytes},
      {0xffff'ffff, Window::kSmallReplyBytes}};
  for (const auto& slot : kSlots) {
    SessionHarness session;
    wire::CommandHeader header{};
    header.call = 1;
    header.reply_slot = static_cast<uint32_t>(slot.slot);
    header.reply_bytes = slot.bytes;
    ASSERT_TRUE(session.client().channel().send(header, wire::PingBody{}).ok());
    EXPECT_EQ(session.wait_end().code(), Code::kProtocol) << slot.slot << ", " << slot.bytes;
  }
}

TEST(HostileTest, StagingCannotBeLeft) {
  const uint64_t bytes = 8u << 20;  // the size of the harness's staging region
  const struct {
    uint64_t offset, bytes;
  } kRanges[] = {{bytes, 1}, {0, bytes + 1}, {1, bytes}, {~0ull, 2}, {~0ull - 7, 8}, {8, ~0ull}};
  for (const auto& range : kRanges) {
    SessionHarness session;
    wire::CopyStagedBody copy{};
    copy.staging_offset = range.offset;
    copy.bytes = range.bytes;
    copy.sequence = 1;
    EXPECT_FALSE(session.client().call(Custom::kCopyStaged, copy));
    EXPECT_EQ(session.wait_end().code(), Code::kProtocol) << range.offset << ", " << range.bytes;
  }
}

TEST(HostileTest, AnObjectsIdIsBoundOnce) {
  SessionHarness session;
  const auto create = [&](uint32_t id) {
    wire::Encoder out;
    out.value(0u);
    out.value(id);
    return session.client().call(static_cast<uint16_t>(api::Opcode::cuStreamCreate), out.body());
  };
  auto first = create(1);
  ASSERT_TRUE(first);
  EXPECT_EQ(first->result, CUDA_SUCCESS);
  EXPECT_FALSE(create(1));
  EXPECT_EQ(session.wait_end().code(), Code::kProtocol);
}

// The worker may have devices that the session does not have. Here the session has device 1 only.
TEST(HostileTest, NoCommandNamesADeviceOfAnotherSession) {
  SessionHarness::Options options;
  options.devices = {1};
  SessionHarness session(options);
  uint32_t next_id = wire::kFirstCreatedContext;
  const auto call = [&](api::Opcode opcode, const auto& encode, uint32_t context = 1) {
    wire::Encoder out;
    encode(out);
    const auto answer = session.client().call(static_cast<uint16_t>(opcode), out.body(), context);
    return answer ? answer->result : CUDA_ERROR_UNKNOWN;
  };
  const auto pool = [](uint32_t device) {
    CUmemPoolProps properties{};
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = static_cast<int>(device);
    return properties;
  };
  const auto allocation = [](uint32_t device) {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = static_cast<int>(device);
    return properties;
  };
  const auto results = [&](uint32_t device) {
    std::vector<CUresult> all;
    all.push_back(call(api::Opcode::cuDeviceGraphMemTrim, [&](auto& out) { out.value(device); }));
    all.push_back(
        call(api::Opcode::cuDeviceGetDefaultMemPool, [&](auto& out) { out.value(device); }));
    all.push_back(call(api::Opcode::cuCtxCreate_v2, [&](auto& out) {
      out.value(0u);
      out.value(device);
      out.value(wire::ObjectId{next_id++});
    }));
    all.push_back(call(api::Opcode::cuMemPoolCreate, [&](auto& out) {
      out.value(pool(device));
      out.value(wire::ObjectId{next_id++});
    }));
    all.push_back(call(api::Opcode::cuMemCreate, [&](auto& out) {
      out.value(size_t{2} << 20);
      out.value(allocation(device));
      out.value(0ull);
      out.value(wire::ObjectId{next_id++});
    }));
    all.push_back(call(api::Opcode::cuMemGetAllocationGranularity, [&](auto& out) {
      out.value(allocation(device));
      out.value(CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    }));
    // Any command in the device's primary context.
    all.push_back(call(
        api::Opcode::cuDeviceGraphMemTrim, [&](auto& out) { out.value(0u); },
        wire::primary_context_id(device)));
    return all;
  };
  for (const CUresult result : results(0)) EXPECT_EQ(result, CUDA_SUCCESS);
  for (const uint32_t device : {1u, 2u, 16u, 0x7fff'ffffu, 0xffff'fffeu}) {
    const std::vector<CUresult> refused = results(device);
    for (size_t i = 0; i < refused.size(); ++i) {
      const bool context = i + 1 == refused.size();
      EXPECT_EQ(refused[i], context ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_INVALID_DEVICE)
          << "command " << i << ", device " << device;
    }
  }
  EXPECT_TRUE(session.end().ok());
}

// Random bodies after valid headers. More often than not, the values are near valid ones.
TEST(HostileTest, RandomBodiesNeverCrash) {
  std::mt19937 random(99);
  const std::vector<CommandToTry> all = commands();
  for (int round = 0; round < 60; ++round) {
    SessionHarness session;
    for (int i = 0; i < 40; ++i) {
      const CommandToTry& command = all[random() % all.size()];
      std::vector<std::byte> body(command.body_bytes + random() % 256);
      for (size_t at = 0; at + 4 <= body.size(); at += 4) {
        const uint32_t kValues[] = {0,
                                    1,
                                    2,
                                    8,
                                    64,
                                    4096,
                                    static_cast<uint32_t>(random() % 1000),
                                    static_cast<uint32_t>(random())};
        const uint32_t value = kValues[random() % std::size(kValues)];
        std::memcpy(body.data() + at, &value, sizeof value);
      }
      // HostExpose would write into other memory of this process, which is also the client's
      // process.
      if (command.opcode == Custom::kHostExpose) continue;
      // The worker answers these when their word is signalled, which may never happen.
      if (command.opcode == Custom::kMirrorFetchBehind || command.opcode == Custom::kMirrorNews) {
        continue;
      }
      if (!session.client().call(static_cast<uint16_t>(command.opcode), body, random() % 3)) break;
    }
  }
}

}  // namespace
}  // namespace rcuda::server
