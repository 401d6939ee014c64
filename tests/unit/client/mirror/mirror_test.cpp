// Memory that is mirrored between client and worker: the bytes that are sent, and which side's
// bytes win.
#include "client/mirror/mirror.h"
#include "client/mirror/session_order.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/mman.h>

#include "client/route/capture.h"
#include "client/session/wait.h"
#include "common/base/peer_order.h"
#include "common/wire/block_digest.h"
#include "common/wire/marked_bytes.h"
#include "tests/support/withheld_answers.h"
#include "tests/unit/client/mirror/mirror_answers.h"
#include "tests/unit/client/two_puppets.h"

namespace rcuda::client {
namespace {

constexpr size_t kBlock = 4096, kBytes = 5 * kBlock + 100;

class MirrorTest : public ::testing::Test {
 protected:
  struct Run {
    size_t at;
    std::vector<std::byte> content;
  };

  void SetUp() override {
    // Sets up the worker's copy, and the client's region into which the worker puts its bytes.
    lone_.puppet.on(wire::Custom::kMirror, [this](const auto& command) {
      const auto body = command.template as<wire::MirrorBody>();
      auto mapped = lone_.puppet.link().map(static_cast<transport::RegionId>(body.region),
                                            2 * body.fetch_offset);
      if (!mapped.ok()) return test::PuppetServer::Answer{CUDA_ERROR_UNKNOWN, {}};
      exchanged_ = static_cast<std::byte*>(*mapped);
      fetched_ = exchanged_ + body.fetch_offset;
      return test::PuppetServer::Answer{};
    });
    lone_.puppet.on(wire::Custom::kMirrorNews, no_news);
    lone_.puppet.on(wire::Custom::kMirrorFetch, [this](const auto&) {
      std::memcpy(fetched_, worker_.data(), kBytes);
      return answer_with({patches_, loan_});
    });
    lone_.puppet.on(wire::Custom::kMirrorPatch,
                    [this](const auto& command) { return take(command); });
    for (size_t i = 0; i < kBytes; ++i) memory_[i] = static_cast<std::byte>(i % 255);
    mirror(*lone_.session, 1, memory_.data(), kBytes);
    ASSERT_TRUE(any_mirrored());
  }
  void TearDown() override {
    unmirror(memory_.data());
    after_peer(&lone_.puppet);  // its thread does not touch worker_ any more
    EXPECT_FALSE(any_mirrored());
  }

  // The tail of a MirrorPatch.
  struct Patch {
    size_t at;
    std::vector<std::byte> content;
    std::vector<uint8_t> mask;
    std::vector<wire::BlockDigest> digests;
  };
  static Patch read_patch(const test::PuppetServer::Command& command) {
    const auto body = command.as<wire::MirrorPatchBody>();
    const auto tail = command.behind<wire::MirrorPatchBody>();
    Patch patch{body.offset, {tail.begin(), tail.begin() + body.bytes}, {}, {}};
    patch.mask.resize(wire::mask_bytes(body.bytes));
    patch.digests.resize((body.offset + body.bytes - 1) / kBlock - body.offset / kBlock + 1);
    const std::byte* from = tail.data() + body.bytes;
    std::memcpy(patch.mask.data(), from, patch.mask.size());
    from += patch.mask.size();
    EXPECT_EQ(tail.data() + tail.size(), from + patch.digests.size() * sizeof(wire::BlockDigest));
    std::memcpy(patch.digests.data(), from, patch.digests.size() * sizeof(wire::BlockDigest));
    return patch;
  }

  test::PuppetServer::Answer take(const test::PuppetServer::Command& command) {
    const Patch patch = read_patch(command);
    wire::copy_marked(worker_.data() + patch.at, patch.content.data(), patch.content.size(),
                      patch.mask.data());
    patches_ = command.as<wire::MirrorPatchBody>().number;
    return {};
  }

  std::vector<Run> pushed() {
    before_peer(&lone_.puppet);  // this thread may have read worker_
    EXPECT_EQ(push_mirrors(lone_.session->in_context(1)), CUDA_SUCCESS);
    EXPECT_EQ(lone_.ping(), CUDA_SUCCESS);
    std::vector<Run> runs;
    for (const auto& command : lone_.puppet.taken(wire::Custom::kMirrorPatch)) {
      Patch patch = read_patch(command);
      runs.push_back({patch.at, std::move(patch.content)});
    }
    return runs;
  }

  // Does what the worker does before a host function.
  void lend(uint64_t number) {
    std::memcpy(exchanged_, worker_.data(), kBytes);
    const wire::MirrorLoan loan{number, patches_};
    std::memcpy(exchanged_ + wire::MirrorLoan::offset(kBytes), &loan, sizeof loan);
  }

  CUresult pulled() {
    return ordered_with(lone_.puppet, [&] { return pull_mirrors(*lone_.session); });
  }

  LoneSession lone_;
  std::vector<std::byte> memory_ = std::vector<std::byte>(kBytes);
  std::vector<std::byte> worker_ = std::vector<std::byte>(kBytes);
  uint64_t patches_ = 0;  // number of the last patch
  uint64_t loan_ = 0;     // number of the last loan that the worker has taken back
  std::byte* exchanged_ = nullptr;
  std::byte* fetched_ = nullptr;
};

TEST_F(MirrorTest, TheFirstPushSendsEverythingAndTheNextNothing) {
  const auto runs = pushed();
  ASSERT_EQ(runs.size(), 1u);
  EXPECT_EQ(runs[0].at, 0u);
  EXPECT_EQ(runs[0].content, memory_);
  EXPECT_TRUE(pushed().empty());
}

TEST_F(MirrorTest, ChangedBytesTravelInRunsOfBlocks) {
  (void)pushed();
  memory_[kBlock + 1] = std::byte{0xff};  // block 1
  memory_[2 * kBlock] = std::byte{0xff};  // and its neighbour: one run
  memory_[kBytes - 1] = std::byte{0xff};  // the last, short block
  const auto runs = pushed();
  ASSERT_EQ(runs.size(), 2u);
  EXPECT_EQ(runs[0].at, kBlock);
  EXPECT_EQ(runs[0].content.size(), kBlock + 8);
  EXPECT_EQ(runs[1].at, kBytes - 4);
  EXPECT_EQ(runs[1].content.size(), 4u);
  EXPECT_EQ(worker_, memory_);
}

// The launch, not the push before it, must report the error.
TEST_F(MirrorTest, AnErrorOfAnEarlierCommandStopsNoPush) {
  (void)pushed();
  memory_[0] = memory_[2 * kBlock] = memory_[4 * kBlock] = std::byte{0xff};
  lone_.puppet.set_error(CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(pushed().size(), 3u);
  EXPECT_EQ(worker_, memory_);
  EXPECT_EQ(lone_.session->take_error(), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(MirrorTest, WhatCouldNotBeSentIsSentWithTheNextPush) {
  (void)pushed();
  memory_[0] = memory_[2 * kBlock] = memory_[4 * kBlock] = std::byte{0xff};
  int commands = 0;
  lone_.puppet.on(wire::Custom::kMirrorPatch, [&](const auto& command) {
    if (++commands == 2) return test::PuppetServer::Answer{CUDA_ERROR_OUT_OF_MEMORY, {}};
    return take(command);
  });
  {
    const CaptureAnswers answers(true);  // each command reports whether it was executed
    EXPECT_EQ(push_mirrors(lone_.session->in_context(1)), CUDA_ERROR_OUT_OF_MEMORY);
  }
  EXPECT_EQ(lone_.puppet.taken(wire::Custom::kMirrorPatch).size(), 2u);
  const auto runs = pushed();
  ASSERT_EQ(runs.size(), 2u);
  EXPECT_EQ(runs[0].at, 2 * kBlock);
  EXPECT_EQ(runs[1].at, 4 * kBlock);
  EXPECT_EQ(worker_, memory_);
}

TEST_F(MirrorTest, WhatTheWorkerChangedArrives) {
  (void)pushed();
  worker_[3] = std::byte{0xaa};
  worker_[kBytes - 1] = std::byte{0xbb};
  ASSERT_EQ(pulled(), CUDA_SUCCESS);
  EXPECT_EQ(memory_, worker_);
  EXPECT_TRUE(pushed().empty());  // not a change by the application
}

TEST_F(MirrorTest, ChangesOfBothSidesMeetByteByByteAndTheWorkersWin) {
  (void)pushed();
  memory_[10] = std::byte{0x01};  // changed in the client only
  worker_[11] = std::byte{0x02};  // changed in the worker only
  memory_[12] = std::byte{0x03};  // changed in both
  worker_[12] = std::byte{0x04};
  ASSERT_EQ(pulled(), CUDA_SUCCESS);
  EXPECT_EQ(memory_[10], std::byte{0x01});
  EXPECT_EQ(memory_[11], std::byte{0x02});
  EXPECT_EQ(memory_[12], std::byte{0x04});
  EXPECT_EQ(pushed().size(), 1u);  // byte 10 is still to be sent
  EXPECT_EQ(worker_[10], std::byte{0x01});
}

// The program continues after the error. The client must not send bytes older than the worker's.
TEST_F(MirrorTest, AfterAFailedFetchNothingIsSentUntilOneSucceeds) {
  (void)pushed();
  worker_[11] = std::byte{0x02};
  lone_.puppet.on(wire::Custom::kMirrorFetch, [](const auto&) {
    return test::PuppetServer::Answer{CUDA_ERROR_OUT_OF_MEMORY, {}};
  });
  EXPECT_EQ(pulled(), CUDA_ERROR_OUT_OF_MEMORY);
  memory_[12] = std::byte{0x03};
  before_peer(&lone_.puppet);
  EXPECT_EQ(push_mirrors(lone_.session->in_context(1)), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_TRUE(lone_.puppet.taken(wire::Custom::kMirrorPatch).empty());
  lone_.puppet.on(wire::Custom::kMirrorFetch, [this](const auto&) {
    std::memcpy(fetched_, worker_.data(), kBytes);
    return answer_with({patches_, loan_});
  });
  EXPECT_EQ(pushed().size(), 1u);
  EXPECT_EQ(memory_[11], std::byte{0x02});
  EXPECT_EQ(worker_[11], std::byte{0x02});
  EXPECT_EQ(worker_[12], std::byte{0x03});
}

TEST_F(MirrorTest, NothingIsFetchedBeforeAnythingWasSent) {
  worker_[0] = std::byte{0xcc};
  const std::byte mine = memory_[0];
  ASSERT_EQ(pulled(), CUDA_SUCCESS);
  EXPECT_EQ(memory_[0], mine);
}

TEST_F(MirrorTest, AHostFunctionSeesTheWorkersBytesAndLeavesItsOwn) {
  (void)pushed();
  worker_[7] = std::byte{0x70};
  lend(1);
  mirrors_arrived(*lone_.session, 1);
  EXPECT_EQ(memory_[7], std::byte{0x70});
  memory_[8] = std::byte{0x80};  // changed by the host function
  mirrors_leave(*lone_.session, 1);
  EXPECT_EQ(exchanged_[7], std::byte{0x70});
  EXPECT_EQ(exchanged_[8], std::byte{0x80});
  EXPECT_TRUE(pushed().empty());  // the worker has them
}

// During the host function, another thread of the program sends bytes, and a kernel changes them.
// The host function's end must not send the old bytes.
TEST_F(MirrorTest, WhatIsSentDuringAHostFunctionIsNotSentBackAfterIt) {
  (void)pushed();
  lend(1);
  const std::vector<std::byte> lent(exchanged_, exchanged_ + kBytes);
  mirrors_arrived(*lone_.session, 1);
  memory_[9] = std::byte{0x90};
  (void)pushed();
  memory_[10] = std::byte{0xa0};  // changed by the host function
  mirrors_leave(*lone_.session, 1);
  std::vector<std::byte> expected = lent;
  expected[10] = std::byte{0xa0};
  EXPECT_EQ(std::vector<std::byte>(exchanged_, exchanged_ + kBytes), expected);
}

// The worker had already copied its bytes for the loan when the client sent more.
TEST_F(MirrorTest, AHostFunctionTakesNothingBackThatWasSentMeanwhile) {
  (void)pushed();
  worker_[7] = std::byte{0x70};
  lend(1);
  const std::vector<std::byte> lent(exchanged_, exchanged_ + kBytes);
  memory_[9] = std::byte{0x90};
  ASSERT_EQ(pushed().size(), 1u);
  mirrors_arrived(*lone_.session, 1);
  EXPECT_EQ(memory_[7], std::byte{0x70});
  EXPECT_EQ(memory_[9], std::byte{0x90});
  mirrors_leave(*lone_.session, 1);
  EXPECT_EQ(std::vector<std::byte>(exchanged_, exchanged_ + kBytes), lent);
  EXPECT_TRUE(pushed().empty());
  // A kernel has changed it since.
  worker_[9] = std::byte{0x91};
  lend(2);
  mirrors_arrived(*lone_.session, 2);
  EXPECT_EQ(memory_[9], std::byte{0x91});
  mirrors_leave(*lone_.session, 2);
}

// During the function, another thread sends a new value, and then the host sets the old value
// again. The worker has lent the old value and takes back only bytes that differ from the loan. So
// the old value must be sent by the next push.
TEST_F(MirrorTest, WhatWasSetBackDuringAHostFunctionGoesWithTheNextPush) {
  (void)pushed();
  lend(1);
  mirrors_arrived(*lone_.session, 1);
  const std::byte before = memory_[9];
  memory_[9] = std::byte{0xee};
  ASSERT_EQ(pushed().size(), 1u);
  memory_[9] = before;
  mirrors_leave(*lone_.session, 1);
  EXPECT_EQ(pushed().size(), 1u);
  EXPECT_EQ(worker_[9], before);
}

// Another thread fetches after a host function has ended and before the worker has taken the bytes
// back.
TEST_F(MirrorTest, AFetchTakesNothingBackThatAHostFunctionHasLeft) {
  (void)pushed();
  lend(1);
  mirrors_arrived(*lone_.session, 1);
  memory_[8] = std::byte{0x80};
  mirrors_leave(*lone_.session, 1);
  worker_[20] = std::byte{0x44};
  ASSERT_EQ(pulled(), CUDA_SUCCESS);
  EXPECT_EQ(memory_[8], std::byte{0x80});
  EXPECT_EQ(memory_[20], std::byte{0x44});
  EXPECT_TRUE(pushed().empty());
  worker_[8] = std::byte{0x81};  // taken back, and changed by a kernel
  loan_ = 1;
  ASSERT_EQ(pulled(), CUDA_SUCCESS);
  EXPECT_EQ(memory_[8], std::byte{0x81});
}

// Another thread sends bytes during each fetch of this thread, so each answer is older than them.
TEST_F(MirrorTest, AFetchTakesNothingBackThatWasSentMeanwhile) {
  (void)pushed();
  int value = 0;
  lone_.puppet.on(wire::Custom::kMirrorFetch, [&](const auto&) {
    std::memcpy(fetched_, worker_.data(), kBytes);
    const wire::MirrorState state{patches_, loan_};
    memory_[9] = static_cast<std::byte>(++value);
    std::thread([this] {
      EXPECT_EQ(push_mirrors(lone_.session->in_context(1)), CUDA_SUCCESS);
    }).join();
    return answer_with(state);
  });
  worker_[20] = std::byte{0x44};
  ASSERT_EQ(pulled(), CUDA_SUCCESS);
  EXPECT_GT(value, 3);
  EXPECT_EQ(memory_[9], static_cast<std::byte>(value));
  EXPECT_EQ(memory_[20], std::byte{0x44});
}

// A kernel and the host write neighbouring bytes.
TEST_F(MirrorTest, APushWritesOnlyTheBytesThatTheApplicationChanged) {
  (void)pushed();
  worker_[16] = std::byte{0xee};  // by a kernel whose end no thread has waited for
  memory_[15] = memory_[17] = std::byte{0xff};
  ASSERT_EQ(pushed().size(), 1u);
  EXPECT_EQ(worker_[15], std::byte{0xff});
  EXPECT_EQ(worker_[16], std::byte{0xee});
  EXPECT_EQ(worker_[17], std::byte{0xff});
  ASSERT_EQ(pulled(), CUDA_SUCCESS);
  EXPECT_EQ(memory_[16], std::byte{0xee});
  EXPECT_EQ(memory_, worker_);
}

// Another thread begins this mirror, and its launch pushes the bytes, while the worker lends its
// other mirrors for a host function.
TEST_F(MirrorTest, MemoryThatWasNotLentKeepsItsBytes) {
  (void)pushed();
  const std::vector<std::byte> before = memory_;
  mirrors_arrived(*lone_.session, 1);
  EXPECT_EQ(memory_, before);
  memory_[8] = std::byte{0x80};
  mirrors_leave(*lone_.session, 1);
  EXPECT_EQ(pushed().size(), 1u);  // the worker does not take it from the region
  EXPECT_EQ(worker_, memory_);
}

// The transfer of the second loan failed, so the region still has the bytes of the first loan.
TEST_F(MirrorTest, BytesOfAnEarlierLoanAreNotTaken) {
  (void)pushed();
  lend(1);
  mirrors_arrived(*lone_.session, 1);
  mirrors_leave(*lone_.session, 1);
  memory_[8] = std::byte{0x80};
  (void)pushed();
  mirrors_arrived(*lone_.session, 2);
  EXPECT_EQ(memory_[8], std::byte{0x80});
  memory_[9] = std::byte{0x90};
  mirrors_leave(*lone_.session, 2);
  EXPECT_EQ(pushed().size(), 1u);
  EXPECT_EQ(worker_, memory_);
}

// The worker writes a patch immediately, so no stream has to wait for it.
TEST_F(MirrorTest, PatchesNeedNoStream) {
  ASSERT_EQ(pushed().size(), 1u);
  EXPECT_TRUE(lone_.puppet.taken(wire::Custom::kMirrorSent).empty());
  EXPECT_TRUE(lone_.puppet.taken(wire::Custom::kMirrorAwait).empty());
}

TEST_F(MirrorTest, OtherSessionsAreNotAsked) {
  LoneSession other;
  ASSERT_EQ(push_mirrors(other.session->in_context(1)), CUDA_SUCCESS);
  ASSERT_EQ(pull_mirrors(*other.session), CUDA_SUCCESS);
  EXPECT_EQ(other.ping(), CUDA_SUCCESS);
  EXPECT_TRUE(other.puppet.taken(wire::Custom::kMirrorPatch).empty());
  EXPECT_TRUE(other.puppet.taken(wire::Custom::kMirrorFetch).empty());
}

// A stream of another session waits for work of the mirror's session. Therefore a wait in the other
// session also fetches from the mirror's session, until once after the stream has passed its wait.
TEST_F(MirrorTest, SessionsAreAskedWhoseWorkComesBefore) {
  ASSERT_EQ(pushed().size(), 1u);
  LoneSession other;
  const auto stream = std::make_shared<Timeline>(*other.session, 1, 7);
  const Route waiting{other.session.get(), 1, 0, stream.get()};
  stream->count();
  note_order(*lone_.session, waiting, {.number = 1, .position = stream->sent()}, true);
  const auto asked = [&] {
    EXPECT_EQ(pull_mirrors(*other.session), CUDA_SUCCESS);
    return !lone_.puppet.taken(wire::Custom::kMirrorFetch).empty();
  };
  EXPECT_TRUE(asked());
  EXPECT_TRUE(asked());  // the stream may not have reached its wait
  stream->advance(1);
  EXPECT_TRUE(asked());
  EXPECT_FALSE(asked());
  stream->count();
  note_order(*lone_.session, waiting, {.number = 2, .position = stream->sent()}, true);
  EXPECT_TRUE(asked());
  stream->advance(2);
  EXPECT_TRUE(asked());
  EXPECT_FALSE(asked());
}

// A thread waits for its stream while another thread frees mirrored memory.
TEST_F(MirrorTest, MemoryThatGoesMeanwhileIsNoErrorOfAPull) {
  (void)pushed();
  std::thread freeing;
  lone_.puppet.on(wire::Custom::kMirrorFetch, [&](const auto&) {
    freeing = std::thread([this] { unmirror(memory_.data()); });
    while (any_mirrored()) std::this_thread::yield();
    return test::PuppetServer::Answer{CUDA_ERROR_INVALID_VALUE, {}};  // the worker unmirrored it
  });
  EXPECT_EQ(pulled(), CUDA_SUCCESS);
  freeing.join();
}

TEST_F(MirrorTest, NothingIsLeftOfMemoryThatTheWorkerRefuses) {
  const auto mapped = [] {
    std::ifstream maps("/proc/self/maps");
    size_t count = 0;
    for (std::string line; std::getline(maps, line);) {
      count += line.find("rcuda-mirror") != std::string::npos;
    }
    return count;
  };
  const size_t before = mapped();
  ASSERT_GT(before, 0u);
  LoneSession other;
  wire::MirrorBody asked{};
  other.puppet.on(wire::Custom::kMirror, [&](const auto& command) {
    asked = command.template as<wire::MirrorBody>();
    return test::PuppetServer::Answer{CUDA_ERROR_OUT_OF_MEMORY, {}};
  });
  std::vector<std::byte> memory(kBytes);
  mirror(*other.session, 1, memory.data(), kBytes);
  EXPECT_FALSE(is_mirrored(*other.session, reinterpret_cast<uintptr_t>(memory.data()), kBytes));
  EXPECT_EQ(mapped(), before);
  EXPECT_EQ(other.ping(), CUDA_SUCCESS);
  // The end of the region reaches the peer independently of the answer to the ping.
  const auto region = static_cast<transport::RegionId>(asked.region);
  while (other.puppet.link().map(region, 2 * asked.fetch_offset).ok()) {
    EXPECT_TRUE(other.puppet.link().unmap(region).ok());
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

TEST_F(MirrorTest, FreedMemoryIsTouchedNoMore) {
  constexpr int kRounds = 200;
  LoneSession other;
  other.puppet.on(wire::Custom::kMirrorNews, no_news);
  other.puppet.on(wire::Custom::kMirrorFetch, [](const auto&) { return answer_with({}); });
  std::atomic<bool> over{false};
  std::thread freeing([&] {
    for (int round = 0; round < kRounds; ++round) {
      void* memory =
          ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      ASSERT_NE(memory, MAP_FAILED);
      mirror(*other.session, 1, memory, kBytes);
      unmirror(memory);
      ::munmap(memory, kBytes);
    }
    over = true;
  });
  while (!over) {
    EXPECT_EQ(push_mirrors(other.session->in_context(1)), CUDA_SUCCESS);
    EXPECT_EQ(pull_mirrors(*other.session), CUDA_SUCCESS);
    mirrors_arrived(*other.session, 1);
    mirrors_leave(*other.session, 1);
  }
  freeing.join();
  // The worker got no command about memory after the command to forget that memory.
  EXPECT_EQ(other.ping(), CUDA_SUCCESS);
}

// A stream also waits for bytes that were sent for another stream's work.
TEST(MirroredVariableTest, EachStreamWaitsOnceForWhatWasSent) {
  LoneSession lone;
  lone.puppet.on(wire::Custom::kMirrorNews, no_news);
  lone.puppet.on(wire::Custom::kMirrorFetch, [](const auto&) { return answer_with({}); });
  void* const memory = reinterpret_cast<void*>(lone.session->welcome().windows.front().base);
  ASSERT_EQ(mirror_at(*lone.session, 1, reinterpret_cast<uintptr_t>(memory), kBlock), CUDA_SUCCESS);
  auto* const variable = static_cast<volatile std::byte*>(memory);
  variable[0] = std::byte{0x01};
  Timeline one(*lone.session, 1, 11), another(*lone.session, 1, 12);
  const auto waiting_after = [&](Timeline* timeline) {
    const Route route{lone.session.get(), 1, 0, timeline};
    EXPECT_EQ(push_mirrors(route), CUDA_SUCCESS);
    EXPECT_EQ(lone.ping(), CUDA_SUCCESS);
    std::vector<wire::ObjectId> streams;
    for (const auto& command : lone.puppet.taken(wire::Custom::kMirrorAwait)) {
      streams.push_back(command.as<wire::MirrorAwaitBody>().stream);
    }
    return streams;
  };
  using Streams = std::vector<wire::ObjectId>;
  EXPECT_EQ(waiting_after(&one), Streams{11});
  EXPECT_EQ(lone.puppet.taken(wire::Custom::kMirrorSent).size(), 1u);
  EXPECT_EQ(waiting_after(&one), Streams{});
  EXPECT_EQ(waiting_after(&another), Streams{12});
  EXPECT_TRUE(lone.puppet.taken(wire::Custom::kMirrorSent).empty());
  variable[0] = std::byte{0xff};
  EXPECT_EQ(waiting_after(&another), Streams{12});
  EXPECT_EQ(lone.puppet.taken(wire::Custom::kMirrorSent).size(), 1u);
  EXPECT_EQ(waiting_after(&one), Streams{11});
  EXPECT_EQ(waiting_after(&another), Streams{});
  unmirror(memory);
}

TEST(MirroredVariableTest, ItsFirstBytesAreAskedForTogetherWithTheMirror) {
  LoneSession lone;
  void* const memory = reinterpret_cast<void*>(lone.session->welcome().windows.front().base);
  std::byte* fetched = nullptr;
  const auto answer = [&](const test::PuppetServer::Command& command) {
    if (command.header.opcode == static_cast<uint16_t>(wire::Custom::kMirror)) {
      const auto body = command.as<wire::MirrorBody>();
      auto mapped = lone.puppet.link().map(static_cast<transport::RegionId>(body.region),
                                           2 * body.fetch_offset);
      EXPECT_TRUE(mapped.ok());
      fetched = static_cast<std::byte*>(*mapped) + body.fetch_offset;
    } else {
      fetched[5] = std::byte{0x50};
    }
    return test::PuppetServer::Answer{};
  };
  const test::WithheldAnswers together(
      lone.puppet, {wire::Custom::kMirror, wire::Custom::kMirrorFetch}, 2, answer);
  EXPECT_EQ(mirror_at(*lone.session, 1, reinterpret_cast<uintptr_t>(memory), kBlock), CUDA_SUCCESS);
  after_peer(&lone.puppet);
  EXPECT_EQ(static_cast<std::byte*>(memory)[5], std::byte{0x50});
  unmirror(memory);
}

// The wait for writes that precedes each copy of pageable memory to the device.
TEST_F(MirrorTest, AWaitForWritesIsNotRepeatedWithoutWork) {
  (void)pushed();
  const Route route = lone_.session->in_context(1);
  const auto waits = [&] {
    before_peer(&lone_.puppet);
    EXPECT_EQ(await_writes(route), CUDA_SUCCESS);
    return lone_.puppet.taken(wire::Custom::kSignal).size();
  };
  EXPECT_EQ(waits(), 1u);
  EXPECT_EQ(waits(), 0u);
  lone_.session->mirrors().note_write();
  EXPECT_EQ(waits(), 1u);
}

}  // namespace
}  // namespace rcuda::client
