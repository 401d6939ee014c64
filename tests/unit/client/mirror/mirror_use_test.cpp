// Before which launches the changes of mirrored memory are sent.
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "client/mirror/mirror.h"
#include "tests/unit/client/two_puppets.h"

namespace rcuda::client {
namespace {

constexpr size_t kLarge = 2 * kAlwaysSentBytes;

// A kernel with an integer, a pointer and a structure of two words.
constexpr std::array<wire::ParameterInfo, 3> kLayout{{{0, 4}, {8, 8}, {16, 16}}};

class MirrorUseTest : public ::testing::Test {
 protected:
  void TearDown() override { unmirror(memory_.data()); }

  void mirror_bytes(size_t bytes, MirrorUse use) {
    memory_.resize(bytes);
    mirror(*lone_.session, 1, memory_.data(), bytes, use);
  }
  uint64_t begin() const { return reinterpret_cast<uintptr_t>(memory_.data()); }
  uint64_t inside() const { return begin() + 1000; }

  // Writes to the memory, and launches a kernel with these parameters. Returns whether the write
  // was sent.
  bool sent_before(const std::vector<uint64_t>& words) {
    memory_[5] = static_cast<std::byte>(++written_);
    return sent_by(&words_of(words));
  }
  const LaunchParameters& words_of(const std::vector<uint64_t>& words) {
    launch_ = {std::as_bytes(std::span(words)), kLayout};
    return launch_;
  }
  bool sent_by(const LaunchParameters* launch) {
    EXPECT_EQ(push_mirrors(lone_.session->in_context(1), launch), CUDA_SUCCESS);
    return any_sent();
  }
  // Writes to the memory, and shows the write to running kernels. Returns whether it was sent.
  bool shown() {
    memory_[5] = static_cast<std::byte>(++written_);
    show_writes(*lone_.session, false);
    return any_sent();
  }
  bool any_sent() {
    EXPECT_EQ(lone_.ping(), CUDA_SUCCESS);
    return !lone_.puppet.taken(wire::Custom::kMirrorPatch).empty();
  }

  LoneSession lone_;
  LaunchParameters launch_;
  wire::LaunchBody body_{};
  std::vector<std::byte> memory_;
  int written_ = 0;
};

TEST_F(MirrorUseTest, MemoryThatAnyLaunchMayUseIsSentBeforeEach) {
  mirror_bytes(kLarge, MirrorUse::kAny);
  EXPECT_TRUE(sent_before({}));
  EXPECT_TRUE(sent_before({1, 2, 3, 4}));
}

TEST_F(MirrorUseTest, LargeMemoryOfAStructureIsSentBeforeLaunchesThatNameIt) {
  mirror_bytes(kLarge, MirrorUse::kNamed);
  EXPECT_TRUE(sent_before({})) << "the worker does not have it yet";
  EXPECT_FALSE(sent_before({}));
  EXPECT_FALSE(sent_before({1, 2, begin() - 1, begin() + kLarge + 1}));
  EXPECT_TRUE(sent_before({1, 2, 3, begin()}));
  EXPECT_TRUE(sent_before({1, 2, 3, begin() + kLarge})) << "a kernel may walk through it backwards";
  EXPECT_TRUE(sent_before({1, 2, inside(), 4}));
  EXPECT_FALSE(sent_before({1, 2, 3, 4}));
  EXPECT_TRUE(sent_before({inside(), 2, 3, 4}));
  EXPECT_FALSE(sent_before({1, 2, 3, 4}));
}

// A kernel may wait for the host's next write.
TEST_F(MirrorUseTest, LargeMemoryIsShownToRunningWorkThatNamedIt) {
  Session& session = *lone_.session;
  const Route route = session.in_context(1);
  Timelines& timelines = session.timelines();
  const auto timeline = timelines.make(session, 1, 3);
  mirror_bytes(kLarge, MirrorUse::kNamed);
  EXPECT_TRUE(sent_before({1, 2, 3, inside()}));
  timelines.waited(timelines.now(Timelines::Scope::kContext, 1));
  EXPECT_FALSE(shown()) << "nothing runs";
  const auto launch = [&](const std::vector<uint64_t>& words) {
    EXPECT_EQ(push_mirrors(route, &words_of(words)), CUDA_SUCCESS);
    EXPECT_EQ(session.post(route, body_), CUDA_SUCCESS);
  };
  launch({1, 2, 3, 4});
  EXPECT_FALSE(shown()) << "the kernel does not know it";
  launch({1, 2, 3, inside()});
  EXPECT_TRUE(shown());
  EXPECT_TRUE(shown());
  timelines.waited(timelines.now(Timelines::Scope::kContext, 1));
  EXPECT_FALSE(shown()) << "the kernel has ended";
}

TEST_F(MirrorUseTest, WorkThatIsNoLaunchSendsAll) {
  mirror_bytes(kLarge, MirrorUse::kNamed);
  EXPECT_TRUE(sent_before({}));
  memory_[0] = std::byte{0xff};
  EXPECT_TRUE(sent_by(nullptr));
}

TEST_F(MirrorUseTest, AfterAPointerAsAParameterOfItsOwnAnyLaunchMayUseIt) {
  mirror_bytes(kLarge, MirrorUse::kNamed);
  EXPECT_TRUE(sent_before({}));
  const std::vector<uint64_t> in_structure{1, 2, inside(), inside()}, whole{1, inside(), 3, 4};
  any_launch_may_use(LaunchParameters{std::as_bytes(std::span(in_structure)), kLayout});
  EXPECT_FALSE(sent_before({1, 2, 3, 4}));
  any_launch_may_use(LaunchParameters{std::as_bytes(std::span(whole)), kLayout});
  EXPECT_TRUE(sent_before({1, 2, 3, 4}));
}

TEST_F(MirrorUseTest, AWordOfAnUnknownLayoutCountsAsAParameter) {
  mirror_bytes(kLarge, MirrorUse::kNamed);
  EXPECT_TRUE(sent_before({}));
  const std::vector<uint64_t> words{1, 2, 3, inside()};
  any_launch_may_use(LaunchParameters{std::as_bytes(std::span(words)), {}});
  EXPECT_TRUE(sent_before({1, 2, 3, 4}));
}

TEST_F(MirrorUseTest, AfterItsDevicePointerIsKnownAnyLaunchMayUseIt) {
  mirror_bytes(kLarge, MirrorUse::kNamed);
  EXPECT_TRUE(sent_before({}));
  any_launch_may_use(memory_.data() + kLarge - 1);
  EXPECT_TRUE(sent_before({1, 2, 3, 4}));
}

TEST_F(MirrorUseTest, SmallMemoryIsSentBeforeEachLaunch) {
  mirror_bytes(kAlwaysSentBytes, MirrorUse::kNamed);
  EXPECT_TRUE(sent_before({}));
  EXPECT_TRUE(sent_before({1, 2, 3, 4}));
}

}  // namespace
}  // namespace rcuda::client
