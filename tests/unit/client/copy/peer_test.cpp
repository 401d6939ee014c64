// The commands that the two workers get for a blocking copy between them. A worker checks that its
// stream has reached the copy only if the client does not know that the stream is idle.
#include "client/copy/peer.h"

#include <gtest/gtest.h>

#include "api/opcodes.h"
#include "client/copy/locate.h"
#include "client/copy/peer_node.h"
#include "tests/unit/client/two_puppets.h"

namespace rcuda::client {
namespace {

class PeerCopyTest : public TwoPuppetsTest {
 protected:
  struct Asked {
    bool source = false, destination = false;
    bool operator==(const Asked&) const = default;
  };

  void SetUp() override {
    TwoPuppetsTest::SetUp();
    source_.emplace(side(first_session()));
    destination_.emplace(side(second_session()));
  }
  PeerSide side(Session& session) {
    const uint64_t address = allocate(session, 0x6000000, 4096);
    Location location;
    EXPECT_EQ(locate(address, 4096, Side::kDevice, &location), CUDA_SUCCESS);
    return {*location.owner, address};
  }
  // Copies 64 bytes from the first server to the second. Returns on which sides the copy took a
  // place in the default stream.
  Asked copy() {
    (void)sent(wire::Custom::kPeerCopy), (void)sent_to_second(wire::Custom::kPeerCopy);
    EXPECT_EQ(issue(true), CUDA_SUCCESS);
    const auto out = sent(wire::Custom::kPeerCopy), in = sent_to_second(wire::Custom::kPeerCopy);
    if (out.size() != 1 || in.size() != 1) {
      ADD_FAILURE() << out.size() << " and " << in.size() << " halves";
      return {};
    }
    const auto source = out[0].as<wire::PeerCopyBody>(),
               destination = in[0].as<wire::PeerCopyBody>();
    const Asked asked{(source.flags & wire::kPeerInStream) != 0,
                      (destination.flags & wire::kPeerInStream) != 0};
    // If the destination took no place in a stream, it need not report that it is ready.
    EXPECT_EQ((source.flags & wire::kPeerOtherStream) != 0, asked.destination);
    return asked;
  }
  static void fill(const PeerSide& side) {
    EXPECT_EQ(side.owner.session->post(side.owner, {api::Opcode::cuMemsetD8Async, {}}),
              CUDA_SUCCESS);
  }

  CUresult issue(bool synchronous) {
    return copy_between_servers({*destination_, *source_, {64}}, nullptr, synchronous);
  }

  std::optional<PeerSide> source_, destination_;
};

TEST_F(PeerCopyTest, AsksAStreamOnlyIfSomethingMayBeUnderWay) {
  fill(*source_);
  fill(*destination_);
  EXPECT_EQ(copy(), (Asked{true, true}));
  // The end of the copy shows that both streams are idle.
  EXPECT_EQ(copy(), (Asked{false, false}));
  fill(*destination_);
  EXPECT_EQ(copy(), (Asked{false, true}));
  EXPECT_EQ(copy(), (Asked{false, false}));
  fill(*source_);
  EXPECT_EQ(copy(), (Asked{true, false}));
}

TEST_F(PeerCopyTest, ACopyThatFailedTellsNothingOfItsStreams) {
  fill(*destination_);
  second().on(wire::Custom::kPeerCopy, [](const Command&) {
    return test::PuppetServer::Answer{CUDA_ERROR_UNKNOWN, {}};
  });
  EXPECT_EQ(issue(true), CUDA_ERROR_UNKNOWN);
  second().on(wire::Custom::kPeerCopy, nullptr);
  EXPECT_TRUE(copy().destination);
}

TEST_F(PeerCopyTest, WhatIsQueuedDuringACopyIsAskedAbout) {
  fill(*destination_);
  // The puppet's thread plays another thread of the program, which queues work during the copy.
  second().on(wire::Custom::kPeerCopy, [this](const Command&) {
    fill(*destination_);
    return test::PuppetServer::Answer{};
  });
  EXPECT_EQ(issue(true), CUDA_SUCCESS);
  second().on(wire::Custom::kPeerCopy, nullptr);
  EXPECT_TRUE(copy().destination);
}

// Copies from the first server to another one, issued in a stream of the second server.
TEST_F(PeerCopyTest, ANodeMustStayInItsAllocations) {
  CUDA_MEMCPY3D given{};
  given.dstMemoryType = given.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  given.dstDevice = destination_->address;
  given.srcDevice = source_->address;
  given.WidthInBytes = 1024, given.Height = 4, given.Depth = 1;
  std::optional<CopyBetweenServers> copy;
  ASSERT_EQ(copy_between_servers_of(given, &copy), CUDA_SUCCESS);
  ASSERT_TRUE(copy);
  EXPECT_EQ(copy->source.slice_bytes, 4096u);
  given.dstY = 1;
  EXPECT_EQ(copy_between_servers_of(given, &copy), CUDA_ERROR_INVALID_VALUE);
  given.dstY = 0;
  given.srcPitch = 1025;
  EXPECT_EQ(copy_between_servers_of(given, &copy), CUDA_ERROR_INVALID_VALUE);
  given.srcPitch = size_t{1} << 63;  // the size of four rows overflows
  EXPECT_EQ(copy_between_servers_of(given, &copy), CUDA_ERROR_INVALID_VALUE);
}

class ThirdServerTest : public PeerCopyTest {
 protected:
  void SetUp() override {
    PeerCopyTest::SetUp();
    const PeerSide second = *destination_;
    destination_.emplace(PeerSide{{other_.session.get(), second.owner.context, second.owner.device},
                                  second.address});
    push_context(process().device(1)->primary);
    (void)sent(static_cast<uint16_t>(api::Opcode::cuStreamCreate));
  }
  void TearDown() override {
    EXPECT_EQ(other_.ping(), CUDA_SUCCESS);
    process().peers().forget(*other_.session);
    pop_context();
    PeerCopyTest::TearDown();
  }
  void copy_in_stream() { EXPECT_EQ(issue(false), CUDA_SUCCESS); }

  LoneSession other_;
};

TEST_F(ThirdServerTest, EachGpuOfTheSourceHasOneStreamForThem) {
  const uint32_t ordinals[] = {first_session().ordinals()[0], first_session().ordinals()[1]};
  const uint64_t address = source_->address;
  for (int round = 0; round < 3; ++round) {
    for (uint32_t gpu = 0; gpu < 2; ++gpu) {
      source_.emplace(
          PeerSide{{&first_session(), wire::primary_context_id(gpu), ordinals[gpu]}, address});
      copy_in_stream();
    }
  }
  EXPECT_EQ(sent(wire::Custom::kPeerCopy).size(), 6u);
  EXPECT_LE(sent(static_cast<uint16_t>(api::Opcode::cuStreamCreate)).size(), 2u);
}

// The program waits for its stream, which belongs to the second server.
TEST_F(ThirdServerTest, TheServerOfTheStreamReportsAnError) {
  (void)sent(wire::Custom::kPeerCopy), (void)sent(wire::Custom::kPeerSignal);
  (void)sent_to_second(wire::Custom::kPeerAwait);
  copy_in_stream();
  const auto out = sent(wire::Custom::kPeerCopy), signals = sent(wire::Custom::kPeerSignal);
  const auto awaits = sent_to_second(wire::Custom::kPeerAwait);
  EXPECT_EQ(other_.ping(), CUDA_SUCCESS);
  const auto in = other_.puppet.taken(wire::Custom::kPeerCopy);
  ASSERT_EQ(out.size(), 1u);
  ASSERT_EQ(in.size(), 1u);
  ASSERT_EQ(signals.size(), 1u);
  ASSERT_EQ(awaits.size(), 1u);
  const auto half = out[0].as<wire::PeerCopyBody>();
  EXPECT_EQ(half.flags & (wire::kPeerReports | wire::kPeerSignalled), wire::kPeerSignalled);
  EXPECT_EQ(in[0].as<wire::PeerCopyBody>().flags & (wire::kPeerReports | wire::kPeerSignalled), 0u);
  const auto signal = signals[0].as<wire::PeerSignalBody>();
  EXPECT_EQ(signal.copy, half.id);
  EXPECT_EQ(awaits[0].as<wire::PeerSignalBody>().id, signal.id);
}

}  // namespace
}  // namespace rcuda::client
