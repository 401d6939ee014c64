// The traits of commands from the columns of api/table, as client and worker read them.
#include "api/traits.h"

#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "api/opcodes.h"

namespace rcuda::api {
namespace {

using wire::Custom;

template <typename Body>
std::span<const std::byte> bytes_of(const Body& body) {
  return std::as_bytes(std::span(&body, 1));
}

constexpr const CommandTraits& traits_of(Opcode opcode) {
  return api::traits_of(static_cast<uint16_t>(opcode));
}

TEST(TraitsTest, AnOpcodeThatIsNoneMayDoAnything) {
  for (const int opcode : {0, 0xff, 0xfff, 0xffff}) {
    const CommandTraits& traits = api::traits_of(static_cast<uint16_t>(opcode));
    EXPECT_EQ(traits.while_held, WhileHeld::kWaits) << opcode;
    EXPECT_EQ(traits.queues, Queues::kWork) << opcode;
    EXPECT_FALSE(traits.signals()) << opcode;
  }
}

TEST(TraitsTest, CommandsAreWhatTheTableSays) {
  EXPECT_EQ(traits_of(Opcode::cuMemFree_v2).frees, Frees::kAtOnce);
  EXPECT_TRUE(traits_of(Opcode::cuMemFree_v2).waits_for_device);
  EXPECT_EQ(traits_of(Opcode::cuMemFreeAsync).frees, Frees::kInStream);
  EXPECT_EQ(traits_of(Opcode::cuCtxDestroy_v2).frees, Frees::kContext);
  EXPECT_EQ(traits_of(Opcode::cuMemAlloc_v2).while_held, WhileHeld::kWaits);
  EXPECT_EQ(traits_of(Opcode::cuMemsetD8Async).while_held, WhileHeld::kQueues);
  EXPECT_EQ(api::traits_of(Custom::kLaunch).while_held, WhileHeld::kAsks);
  EXPECT_EQ(api::traits_of(Custom::kPing).queues, Queues::kNothing);
  EXPECT_TRUE(api::traits_of(Custom::kPeerSignal).any_context);
  EXPECT_FALSE(api::traits_of(Custom::kPeerAwait).any_context);
  EXPECT_TRUE(api::traits_of(Custom::kHostUnexpose).waits_for_device);
}

TEST(TraitsTest, ABodyWithAWordSignals) {
  const wire::PeerCopyBody copy{.word = 7, .sequence = 1ull << 40};
  const CommandTraits& traits = api::traits_of(Custom::kPeerCopy);
  EXPECT_EQ(traits.body_bytes, sizeof copy);
  EXPECT_EQ(member(bytes_of(copy), traits.word), 7u);
  EXPECT_EQ(member<uint64_t>(bytes_of(copy), traits.sequence), 1ull << 40);
  EXPECT_FALSE(api::traits_of(Custom::kCopyInline).signals());
}

TEST(TraitsTest, TheBodySaysWhetherItHoldsAStream) {
  wire::PeerCopyBody copy{.flags = wire::kPeerInStream};
  const CommandTraits& traits = api::traits_of(Custom::kPeerCopy);
  EXPECT_FALSE(holds_stream(traits, bytes_of(copy)));
  copy.flags |= wire::kPeerHolds;
  EXPECT_TRUE(holds_stream(traits, bytes_of(copy)));
  EXPECT_FALSE(holds_stream(traits, bytes_of(copy).first(sizeof(uint64_t))));
  EXPECT_TRUE(holds_stream(api::traits_of(Custom::kPeerAwait), {}));
  EXPECT_FALSE(holds_stream(api::traits_of(Custom::kPeerSignal), {}));
}

TEST(TraitsTest, MembersOfABodyThatIsTooShortAreNotThere) {
  const std::vector<std::byte> body(12);
  EXPECT_EQ(member(body, 8), 0u);
  EXPECT_EQ(member(body, 9), std::nullopt);
  EXPECT_EQ(member(body, 12), std::nullopt);
  EXPECT_EQ(member(body, CommandTraits::kNone), std::nullopt);
  EXPECT_EQ(member({}, 0), std::nullopt);
}

}  // namespace
}  // namespace rcuda::api
