// Many small mirrors: one query (MirrorNews) for all, whose answer has only the changed bytes.
#include <cstring>
#include <map>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "client/mirror/mirror.h"
#include "client/session/wait.h"
#include "common/base/peer_order.h"
#include "tests/unit/client/mirror/mirror_answers.h"
#include "tests/unit/client/two_puppets.h"

namespace rcuda::client {
namespace {

class MirrorNewsTest : public ::testing::Test {
 protected:
  using Answer = test::PuppetServer::Answer;
  using Command = test::PuppetServer::Command;
  static constexpr size_t kMirrors = 3, kBytes = 10'000;

  // The worker's side of a mirror.
  struct Worker {
    std::vector<std::byte> bytes = std::vector<std::byte>(kBytes);
    std::byte* fetched = nullptr;
    uint64_t answer = 0, named = 0;  // the last answer, and the answer that the client names
    std::vector<wire::MirrorPiece> news;
  };

  void SetUp() override {
    lone_.puppet.on(wire::Custom::kMirror, [this](const Command& command) {
      const auto body = command.as<wire::MirrorBody>();
      auto mapped = lone_.puppet.link().map(static_cast<transport::RegionId>(body.region),
                                            2 * body.fetch_offset);
      if (!mapped.ok()) return Answer{CUDA_ERROR_UNKNOWN, {}};
      workers_[body.address].fetched = static_cast<std::byte*>(*mapped) + body.fetch_offset;
      return Answer{};
    });
    lone_.puppet.on(wire::Custom::kMirrorFetch, [this](const Command& command) {
      Worker& worker = workers_[command.as<wire::MirrorFetchBody>().address];
      std::memcpy(worker.fetched, worker.bytes.data(), kBytes);
      return answer_with({UINT64_MAX, 0, ++worker.answer});
    });
    lone_.puppet.on(wire::Custom::kMirrorNews,
                    [this](const Command& command) { return news(command); });
    for (auto& memory : memory_) mirror(*lone_.session, 1, memory.data(), kBytes);
    ASSERT_EQ(push_mirrors(lone_.session->in_context(1)), CUDA_SUCCESS);
  }
  void TearDown() override {
    for (auto& memory : memory_) unmirror(memory.data());
    after_peer(&lone_.puppet);  // workers_ is destroyed after the thread's last use
  }

  Answer news(const Command& command) {
    Answer answer;
    const auto append = [&](const void* from, size_t bytes) {
      const auto* const begin = static_cast<const std::byte*>(from);
      answer.body.insert(answer.body.end(), begin, begin + bytes);
    };
    for (size_t i = 0; i < command.as<wire::MirrorNewsBody>().count; ++i) {
      wire::MirrorKnown known;
      std::memcpy(&known, command.body.data() + sizeof(wire::MirrorNewsBody) + i * sizeof known,
                  sizeof known);
      Worker& worker = workers_[known.address];
      worker.named = known.answer;
      wire::MirrorNewsHead head{{UINT64_MAX, 0, 0}, 0, 1};
      if (known.answer == worker.answer && known.answer != 0) {
        if (!worker.news.empty()) ++worker.answer;
        head = {{patches_, 0, worker.answer}, static_cast<uint32_t>(worker.news.size()), 0};
      }
      append(&head, sizeof head);
      if (head.fetch_all) continue;
      for (const wire::MirrorPiece& piece : worker.news) {
        append(&piece, sizeof piece);
        append(&worker.bytes[piece.offset], piece.bytes);
        answer.body.resize((answer.body.size() + 7) & ~size_t{7});
      }
      worker.news.clear();
    }
    return answer;
  }
  // The GPU writes to a mirror.
  void write(size_t mirror, uint32_t offset, int value) {
    Worker& worker = worker_of(mirror);
    worker.bytes[offset] = static_cast<std::byte>(value);
    worker.news.push_back({offset, 1});
  }
  Worker& worker_of(size_t mirror) {
    after_peer(&lone_.puppet);  // its thread uses workers_
    return workers_[reinterpret_cast<uintptr_t>(memory_[mirror].data())];
  }
  CUresult pull() {
    return ordered_with(lone_.puppet, [&] { return pull_mirrors(*lone_.session); });
  }
  CUresult wait() {
    return ordered_with(lone_.puppet, [&] { return synchronize(lone_.session->in_context(1)); });
  }
  // The numbers of MirrorNews and MirrorFetch commands since the last call.
  std::vector<size_t> asked() {
    EXPECT_EQ(lone_.ping(), CUDA_SUCCESS);
    return {lone_.puppet.taken(wire::Custom::kMirrorNews).size(),
            lone_.puppet.taken(wire::Custom::kMirrorFetch).size()};
  }

  LoneSession lone_;
  std::vector<std::vector<std::byte>> memory_{kMirrors, std::vector<std::byte>(kBytes)};
  std::map<uint64_t, Worker> workers_;
  uint64_t patches_ = UINT64_MAX;  // the number of the last patch that the worker's bytes contain
};

TEST_F(MirrorNewsTest, AfterTheFirstFetchOneQuestionBringsWhatChanged) {
  worker_of(1).bytes[5] = std::byte{1};
  ASSERT_EQ(pull(), CUDA_SUCCESS);
  EXPECT_EQ(asked(), (std::vector<size_t>{1, kMirrors}));
  EXPECT_EQ(memory_[1], worker_of(1).bytes);

  write(0, 0, 2);
  write(2, 4096, 3);
  write(2, kBytes - 1, 4);
  ASSERT_EQ(pull(), CUDA_SUCCESS);
  EXPECT_EQ(asked(), (std::vector<size_t>{1, 0}));
  for (size_t i = 0; i < kMirrors; ++i) EXPECT_EQ(memory_[i], worker_of(i).bytes) << i;
  EXPECT_EQ(worker_of(2).named, 1u);
  ASSERT_EQ(pull(), CUDA_SUCCESS);
  EXPECT_EQ(worker_of(1).named, 1u) << "nothing has changed there";
  EXPECT_EQ(worker_of(2).named, 2u);
  EXPECT_EQ(asked(), (std::vector<size_t>{1, 0}));
}

TEST_F(MirrorNewsTest, TheApplicationsOwnChangesStay) {
  ASSERT_EQ(pull(), CUDA_SUCCESS);
  memory_[0][7] = std::byte{9};
  write(0, 8, 1);
  ASSERT_EQ(pull(), CUDA_SUCCESS);
  EXPECT_EQ(memory_[0][7], std::byte{9});
  EXPECT_EQ(memory_[0][8], std::byte{1});
}

// Another thread's launch sends newer bytes during this thread's query.
TEST_F(MirrorNewsTest, AnExchangeDuringTheQuestionMakesTheBytesOld) {
  ASSERT_EQ(pull(), CUDA_SUCCESS);
  (void)asked();
  write(0, 8, 1);
  // Only in the first answer: waits after this test send queries as well.
  lone_.puppet.on(wire::Custom::kMirrorNews, [this, first = true](const Command& command) mutable {
    const Answer answer = news(command);
    if (std::exchange(first, false)) {
      memory_[0][7] = worker_of(0).bytes[7] = std::byte{9};
      EXPECT_EQ(push_mirrors(lone_.session->in_context(1)), CUDA_SUCCESS);
    }
    return answer;
  });
  ASSERT_EQ(pull(), CUDA_SUCCESS);
  EXPECT_EQ(asked(), (std::vector<size_t>{2, 1})) << "the client names the answer before";
  EXPECT_EQ(memory_[0], worker_of(0).bytes);
}

// Here the worker's last answer is not the answer that the client names, so a query's reply would
// have all bytes. The same holds if too many bytes have changed.
TEST_F(MirrorNewsTest, AMirrorThatChangesAsAWholeIsFetchedWithoutAQuestion) {
  ASSERT_EQ(pull(), CUDA_SUCCESS);
  (void)asked();
  for (size_t i = 0; i < kMirrors; ++i) ++worker_of(i).answer;
  ASSERT_EQ(pull(), CUDA_SUCCESS);
  EXPECT_EQ(asked(), (std::vector<size_t>{1, kMirrors}));
  for (int i = 0; i < 8; ++i) ASSERT_EQ(pull(), CUDA_SUCCESS);
  EXPECT_EQ(asked(), (std::vector<size_t>{0, 8 * kMirrors}));
  ASSERT_EQ(pull(), CUDA_SUCCESS);
  EXPECT_EQ(asked(), (std::vector<size_t>{1, 0}));
}

TEST_F(MirrorNewsTest, AWaitAsksWithItsOwnCommand) {
  ASSERT_EQ(pull(), CUDA_SUCCESS);
  (void)asked();
  write(0, 0, 2);
  write(2, kBytes - 1, 4);
  ASSERT_EQ(wait(), CUDA_SUCCESS);
  for (size_t i = 0; i < kMirrors; ++i) EXPECT_EQ(memory_[i], worker_of(i).bytes) << i;
  const std::vector<Command> news = lone_.puppet.taken(wire::Custom::kMirrorNews);
  ASSERT_EQ(news.size(), 1u);
  const auto body = news[0].as<wire::MirrorNewsBody>();
  EXPECT_EQ(body.count, kMirrors);
  EXPECT_NE(body.sequence_behind, 0u) << "of the wait's word";
  EXPECT_EQ(asked(), (std::vector<size_t>{0, 0}));
}

// Another thread's launch sends a patch while this thread waits. The answer has the GPU's earlier
// changes, and lacks the patch.
TEST_F(MirrorNewsTest, APatchDuringTheWaitIsAddedToTheAnswer) {
  ASSERT_EQ(pull(), CUDA_SUCCESS);
  (void)asked();
  write(0, 8, 1);
  patches_ = 1;
  lone_.puppet.on(wire::Custom::kMirrorNews, [this](const Command& command) {
    const Answer answer = news(command);
    memory_[0][7] = worker_of(0).bytes[7] = std::byte{9};
    EXPECT_EQ(push_mirrors(lone_.session->in_context(1)), CUDA_SUCCESS);
    return answer;
  });
  ASSERT_EQ(wait(), CUDA_SUCCESS);
  EXPECT_EQ(memory_[0], worker_of(0).bytes);
  EXPECT_EQ(asked(), (std::vector<size_t>{1, 0}));
}

TEST_F(MirrorNewsTest, AFetchDuringTheWaitMakesTheAnswerOld) {
  ASSERT_EQ(pull(), CUDA_SUCCESS);
  (void)asked();
  write(0, 8, 1);
  Wait wait(lone_.session->in_context(1));
  ASSERT_TRUE(wait.start());
  ASSERT_EQ(lone_.ping(), CUDA_SUCCESS);
  worker_of(0).bytes[8] = std::byte{2};
  ASSERT_EQ(pull(), CUDA_SUCCESS);
  EXPECT_EQ(memory_[0][8], std::byte{2});
  EXPECT_EQ(asked(), (std::vector<size_t>{2, 1})) << "the client lacks the answer of the wait";
  before_peer(&lone_.puppet);
  ASSERT_EQ(wait.finish(), CUDA_SUCCESS);
  after_peer(&lone_.puppet);
  EXPECT_EQ(memory_[0], worker_of(0).bytes);
}

TEST_F(MirrorNewsTest, WhatTheWaitDidNotBringIsFetchedBehindIt) {
  ASSERT_EQ(pull(), CUDA_SUCCESS);
  (void)asked();
  for (size_t i = 0; i < kMirrors; ++i) {
    ++worker_of(i).answer;
    worker_of(i).bytes[i] = std::byte{5};
  }
  ASSERT_EQ(wait(), CUDA_SUCCESS);
  EXPECT_EQ(asked(), (std::vector<size_t>{2, kMirrors}));
  for (size_t i = 0; i < kMirrors; ++i) EXPECT_EQ(memory_[i], worker_of(i).bytes) << i;
}

// The reply to a second query would be as small, so the client fetches the rest with MirrorFetch.
TEST_F(MirrorNewsTest, WhatALargeAnswerDidNotBringIsFetchedWithoutAQuestion) {
  std::vector<std::vector<std::byte>> more(2, std::vector<std::byte>(kBytes));
  for (auto& memory : more) mirror(*lone_.session, 1, memory.data(), kBytes);
  ASSERT_EQ(push_mirrors(lone_.session->in_context(1)), CUDA_SUCCESS);
  ASSERT_EQ(pull(), CUDA_SUCCESS);
  (void)asked();
  ++worker_of(0).answer;
  worker_of(0).bytes[0] = std::byte{5};
  ASSERT_EQ(wait(), CUDA_SUCCESS);
  EXPECT_EQ(asked(), (std::vector<size_t>{1, 1}));
  EXPECT_EQ(memory_[0], worker_of(0).bytes);
  for (auto& memory : more) unmirror(memory.data());
}

TEST_F(MirrorNewsTest, AMalformedAnswerFailsAndIsAskedForAgain) {
  ASSERT_EQ(pull(), CUDA_SUCCESS);
  write(1, 3, 1);
  worker_of(1).news[0].bytes = kBytes;
  worker_of(1).bytes.resize(2 * kBytes);
  EXPECT_EQ(pull(), CUDA_ERROR_UNKNOWN);
  worker_of(1).bytes.resize(kBytes);
  EXPECT_EQ(pull(), CUDA_SUCCESS);
  EXPECT_EQ(memory_[1], worker_of(1).bytes);
}

}  // namespace
}  // namespace rcuda::client
