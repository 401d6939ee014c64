// Fetches of mirrored memory: of one mirror together with a wait, and of several mirrors together.
#include <cstring>
#include <deque>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "client/mirror/mirror.h"
#include "client/session/event_state.h"
#include "client/session/wait.h"
#include "common/base/peer_order.h"
#include "tests/support/withheld_answers.h"
#include "tests/unit/client/mirror/mirror_answers.h"
#include "tests/unit/client/two_puppets.h"

namespace rcuda::client {
namespace {

constexpr size_t kBlock = 4096;

// A mirror whose bytes fit into a small reply. A wait requests them together with its own command
// (MirrorFetchBehind).
class SmallMirrorTest : public ::testing::Test {
 protected:
  using Answer = test::PuppetServer::Answer;

  void SetUp() override {
    lone_.puppet.on(wire::Custom::kMirror, [this](const auto& command) {
      const auto body = command.template as<wire::MirrorBody>();
      auto mapped = lone_.puppet.link().map(static_cast<transport::RegionId>(body.region),
                                            2 * body.fetch_offset);
      if (!mapped.ok()) return Answer{CUDA_ERROR_UNKNOWN, {}};
      fetched_ = static_cast<std::byte*>(*mapped) + body.fetch_offset;
      return Answer{};
    });
    lone_.puppet.on(wire::Custom::kMirrorFetch, [this](const auto&) {
      std::memcpy(fetched_, worker_.data(), worker_.size());
      return answer_with({UINT64_MAX, 0});
    });
    lone_.puppet.on(wire::Custom::kMirrorFetchBehind, [this](const auto&) {
      return answer_with({UINT64_MAX, 0}, worker_);
    });
    mirror(*lone_.session, 1, memory_.data(), memory_.size());
    ASSERT_TRUE(any_mirrored());
    ASSERT_EQ(push_mirrors(route()), CUDA_SUCCESS);  // a wait needs work in flight
  }
  void TearDown() override {
    unmirror(memory_.data());
    after_peer(&lone_.puppet);  // worker_ is destroyed after the thread's last use
  }
  Route route() { return lone_.session->in_context(1); }
  // The numbers of MirrorFetchBehind and MirrorFetch commands since the last call.
  std::vector<size_t> asked() {
    EXPECT_EQ(lone_.ping(), CUDA_SUCCESS);
    return {lone_.puppet.taken(wire::Custom::kMirrorFetchBehind).size(),
            lone_.puppet.taken(wire::Custom::kMirrorFetch).size()};
  }

  LoneSession lone_;
  std::vector<std::byte> memory_ = std::vector<std::byte>(64);
  std::vector<std::byte> worker_ = std::vector<std::byte>(64);
  std::byte* fetched_ = nullptr;
};

TEST_F(SmallMirrorTest, ItIsAskedForWithTheWait) {
  worker_[5] = std::byte{0x50};
  before_peer(&lone_.puppet);
  ASSERT_EQ(synchronize(route()), CUDA_SUCCESS);
  EXPECT_EQ(memory_[5], std::byte{0x50});
  EXPECT_EQ(asked(), (std::vector<size_t>{1, 0}));
}

TEST_F(SmallMirrorTest, ItIsAskedForWithTheWaitForAnEvent) {
  worker_[5] = std::byte{0x50};
  EventState event(route(), 3);
  before_peer(&lone_.puppet);
  ASSERT_EQ(event.wait(), CUDA_SUCCESS);
  EXPECT_EQ(memory_[5], std::byte{0x50});
  EXPECT_EQ(asked(), (std::vector<size_t>{1, 0}));
}

TEST_F(SmallMirrorTest, AWaitWithNothingToWaitForFetchesOnlyWhatAnotherWaitMayHaveMissed) {
  const auto timeline = lone_.session->timelines().make(*lone_.session, 1, 3);
  const Route idle{lone_.session.get(), 1, 0, timeline.get()};
  ASSERT_EQ(synchronize(idle), CUDA_SUCCESS);
  EXPECT_EQ(asked(), (std::vector<size_t>{0, 1}));
  ASSERT_EQ(synchronize(idle), CUDA_SUCCESS);
  EXPECT_EQ(asked(), (std::vector<size_t>{0, 0}));
  lone_.session->timelines().add_wait();  // as of a thread that has waited and not fetched yet
  ASSERT_EQ(synchronize(idle), CUDA_SUCCESS);
  EXPECT_EQ(asked(), (std::vector<size_t>{0, 1}));
}

TEST_F(SmallMirrorTest, ACallWithoutAWordAsksBeforeItsOwnCommands) {
  worker_[6] = std::byte{0x60};
  before_peer(&lone_.puppet);
  Wait wait(route());
  ASSERT_TRUE(wait.start());
  EXPECT_EQ(lone_.ping(), CUDA_SUCCESS);
  ASSERT_EQ(wait.finish(), CUDA_SUCCESS);
  EXPECT_EQ(memory_[6], std::byte{0x60});
  EXPECT_EQ(asked(), (std::vector<size_t>{1, 0}));
}

// Another thread's launch sends a patch while this thread waits. The answer lacks the patch.
TEST_F(SmallMirrorTest, APatchDuringTheWaitIsAddedToTheAnswer) {
  worker_[7] = std::byte{0x70};
  lone_.puppet.on(wire::Custom::kMirrorFetchBehind, [this](const auto&) {
    const Answer old = answer_with({1, 0}, worker_);
    memory_[0] = worker_[0] = std::byte{0x11};
    EXPECT_EQ(push_mirrors(route()), CUDA_SUCCESS);
    return old;
  });
  before_peer(&lone_.puppet);
  ASSERT_EQ(synchronize(route()), CUDA_SUCCESS);
  after_peer(&lone_.puppet);
  EXPECT_EQ(memory_, worker_);
  EXPECT_EQ(asked(), (std::vector<size_t>{1, 0}));
}

TEST_F(SmallMirrorTest, AFetchDuringTheWaitMakesTheBytesOld) {
  Wait wait(route());
  ASSERT_TRUE(wait.start());
  EXPECT_EQ(lone_.ping(), CUDA_SUCCESS);
  worker_[7] = std::byte{0x70};
  before_peer(&lone_.puppet);
  ASSERT_EQ(pull_mirrors(*lone_.session), CUDA_SUCCESS);
  EXPECT_EQ(memory_, worker_);
  ASSERT_EQ(wait.finish(), CUDA_SUCCESS);
  after_peer(&lone_.puppet);
  EXPECT_EQ(memory_, worker_);
  EXPECT_EQ(asked(), (std::vector<size_t>{1, 2}));
}

// After a patch, another thread sends a query. The query's answer has no changes, and confirms the
// patch. The answer to the wait is older than the patch.
TEST_F(SmallMirrorTest, AnAnswerWithoutAConfirmedPatchIsFetchedAgain) {
  std::vector<std::byte> other(600);  // with a second mirror, the next query is MirrorNews
  std::vector<std::byte> worker = worker_;
  lone_.puppet.on(wire::Custom::kMirrorFetchBehind, [&](const auto&) {
    return answer_with({1, 0}, worker);
  });
  lone_.puppet.on(wire::Custom::kMirrorNews, [](const auto& command) {
    Answer answer;
    for (uint64_t i = 0; i < command.template as<wire::MirrorNewsBody>().count; ++i) {
      const wire::MirrorNewsHead head{{UINT64_MAX, 0, 1}, 0, 0};
      const auto* const bytes = reinterpret_cast<const std::byte*>(&head);
      answer.body.insert(answer.body.end(), bytes, bytes + sizeof head);
    }
    return answer;
  });
  Wait wait(route());
  ASSERT_TRUE(wait.start());
  EXPECT_EQ(lone_.ping(), CUDA_SUCCESS);
  std::byte* const fetched = fetched_;
  mirror(*lone_.session, 1, other.data(), other.size());
  after_peer(&lone_.puppet);
  fetched_ = fetched;
  memory_[0] = worker_[0] = std::byte{0x11};
  before_peer(&lone_.puppet);
  ASSERT_EQ(push_mirrors(route()), CUDA_SUCCESS);
  ASSERT_EQ(pull_mirrors(*lone_.session), CUDA_SUCCESS);
  ASSERT_EQ(wait.finish(), CUDA_SUCCESS);
  after_peer(&lone_.puppet);
  EXPECT_EQ(memory_, worker_);
  unmirror(other.data());
}

TEST_F(SmallMirrorTest, AFetchThatFailsIsTriedAgain) {
  worker_[9] = std::byte{0x90};
  lone_.puppet.on(wire::Custom::kMirrorFetchBehind, [](const auto&) {
    return Answer{CUDA_ERROR_OUT_OF_MEMORY, {}};
  });
  before_peer(&lone_.puppet);
  ASSERT_EQ(synchronize(route()), CUDA_SUCCESS);
  EXPECT_EQ(memory_[9], std::byte{0x90});
  EXPECT_EQ(asked(), (std::vector<size_t>{1, 1}));
}

// The query of a wait holds a reply slot until the wait is over. A waiting thread may depend on
// work of other threads, which need slots too. So the queries of waits must not take all slots.
TEST_F(SmallMirrorTest, QuestionsLeaveSlotsToOtherThreads) {
  std::deque<Wait> waits;
  while (waits.emplace_back(route()).start()) continue;
  waits.pop_back();  // this wait got no slot for its query
  EXPECT_GT(waits.size(), size_t{wire::ClientWindow::kSmallReplyCount} / 2);
  EXPECT_EQ(lone_.ping(), CUDA_SUCCESS);
}

// Several mirrors whose worker tracks changes.
class LargeMirrorsTest : public ::testing::Test {
 protected:
  using Answer = test::PuppetServer::Answer;
  using Command = test::PuppetServer::Command;
  static constexpr size_t kMirrors = 3, kLarge = 40 * kBlock;

  void SetUp() override {
    lone_.puppet.on(wire::Custom::kMirror, [](const auto&) {
      wire::MirrorReply reply{};
      reply.block_bytes = kBlock;
      const auto bytes = std::as_bytes(std::span(&reply, 1));
      return Answer{CUDA_SUCCESS, {bytes.begin(), bytes.end()}};
    });
    for (auto& memory : memory_) mirror(*lone_.session, 1, memory.data(), memory.size());
    ASSERT_EQ(push_mirrors(lone_.session->in_context(1)), CUDA_SUCCESS);
    before_peer(&lone_.puppet);
  }
  void TearDown() override {
    for (auto& memory : memory_) unmirror(memory.data());
  }
  // The worker's answers: the blocks from 2 on have changed, and all their bytes are 7.
  static Answer changes(const Command&, uint64_t blocks) {
    const wire::MirrorRun run{2, blocks};
    return answer_with({UINT64_MAX, 0}, std::as_bytes(std::span(&run, 1)));
  }
  static Answer copied(const Command& command) {
    const auto body = command.as<wire::CopyToReplyBody>();
    return {CUDA_SUCCESS, std::vector<std::byte>(body.bytes, std::byte{7})};
  }
  std::vector<std::byte> expected(size_t blocks) {
    std::vector<std::byte> bytes(kLarge);
    std::fill_n(bytes.begin() + 2 * kBlock, blocks * kBlock, std::byte{7});
    return bytes;
  }

  LoneSession lone_;
  std::vector<std::vector<std::byte>> memory_{kMirrors, std::vector<std::byte>(kLarge)};
};

// One round trip for the queries of all mirrors, and one round trip for all bytes.
TEST_F(LargeMirrorsTest, AreAskedAndFetchedTogether) {
  const test::WithheldAnswers questions(lone_.puppet, {wire::Custom::kMirrorChanges}, kMirrors,
                                        [](const Command& command) { return changes(command, 3); });
  const test::WithheldAnswers bytes(lone_.puppet, {wire::Custom::kCopyToReply}, kMirrors, copied);
  EXPECT_EQ(pull_mirrors(*lone_.session), CUDA_SUCCESS);
  after_peer(&lone_.puppet);
  for (const auto& memory : memory_) EXPECT_EQ(memory, expected(3));
  EXPECT_EQ(lone_.ping(), CUDA_SUCCESS);
  EXPECT_EQ(lone_.puppet.taken(wire::Custom::kMirrorNote).size(), kMirrors);
}

TEST_F(LargeMirrorsTest, ARunOfMoreThanAReplyComesInSeveral) {
  lone_.puppet.on(wire::Custom::kMirrorChanges,
                  [](const Command& command) { return changes(command, 33); });
  lone_.puppet.on(wire::Custom::kCopyToReply, copied);
  EXPECT_EQ(pull_mirrors(*lone_.session), CUDA_SUCCESS);
  after_peer(&lone_.puppet);
  for (const auto& memory : memory_) EXPECT_EQ(memory, expected(33));
  EXPECT_EQ(lone_.puppet.taken(wire::Custom::kCopyToReply).size(), 3 * kMirrors);
}

TEST_F(LargeMirrorsTest, AFailureOfOneIsRepeatedForThatOne) {
  const auto first = reinterpret_cast<uintptr_t>(memory_[0].data());
  lone_.puppet.on(wire::Custom::kMirrorChanges, [first](const Command& command) {
    if (command.as<wire::MirrorChangesBody>().address == first) {
      return Answer{CUDA_ERROR_OUT_OF_MEMORY, {}};
    }
    return changes(command, 3);
  });
  lone_.puppet.on(wire::Custom::kCopyToReply, copied);
  EXPECT_EQ(pull_mirrors(*lone_.session), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(memory_[1], expected(3));
  EXPECT_EQ(memory_[2], expected(3));
  (void)lone_.puppet.taken(wire::Custom::kMirrorChanges);
  lone_.puppet.on(wire::Custom::kMirrorChanges,
                  [](const Command& command) { return changes(command, 3); });
  EXPECT_EQ(push_mirrors(lone_.session->in_context(1)), CUDA_SUCCESS);
  EXPECT_EQ(memory_[0], expected(3));
  EXPECT_EQ(lone_.puppet.taken(wire::Custom::kMirrorChanges).size(), 1u);
}

}  // namespace
}  // namespace rcuda::client
