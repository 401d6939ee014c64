// A session that is parked and woken: the worker's part. The test plays the daemon.
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <gtest/gtest.h>

#include "api/opcodes.h"
#include "server/worker/parker.h"
#include "tests/support/session_harness.h"

namespace rcuda::test {
namespace {

using server::Ledger;
using server::ParkAnswer;
using server::Parker;
using server::ParkStep;
using server::Quota;
using Step = ParkStep::What;
using What = ParkAnswer::What;

constexpr uint64_t kLimit = 64u << 20;

class SessionParkTest : public testing::Test {
 protected:
  explicit SessionParkTest(bool movable_memory = false, bool oversubscribes = false) {
    SessionHarness::Options options;
    options.oversubscribes = oversubscribes;
    options.movable_memory = movable_memory;
    options.devices = {0};
    options.parker = &parker_;
    std::vector<UniqueFd> ledgers;
    ledgers.emplace_back(::fcntl(ledger_.descriptor(), F_DUPFD_CLOEXEC, 0));
    ledger_.clear(0);
    quota_ = std::make_shared<Quota>(
        Quota::make(
            {{.of = "user ada", .device_memory = oversubscribes ? UINT64_MAX : kLimit, .slot = 0}},
            std::move(ledgers))
            .value());
    options.quota = quota_;
    harness_ = std::make_unique<SessionHarness>(options);
  }

  void send(Step step) { send(ParkStep{step}); }
  void send(const ParkStep& step) {
    parker_.receive(step);
    harness_->loop().interrupt();
  }
  What answer() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !answers_.empty(); });
    const What what = answers_.front();
    answers_.erase(answers_.begin());
    return what;
  }
  bool has_answer() {
    std::lock_guard lock(mutex_);
    return !answers_.empty();
  }
  void park() {
    send(Step::kRest);
    ASSERT_EQ(answer(), What::kAtRest);
    send(Step::kSuspend);
    ASSERT_EQ(answer(), What::kSuspended);  // it has no communicators
    send(Step::kParked);
  }
  CUresult ping() {
    const auto answer = harness_->client().call(wire::Custom::kPing, wire::PingBody{});
    return answer ? answer->result : CUDA_ERROR_UNKNOWN;
  }
  std::optional<ProtocolClient::Answer> memory_info() {
    const uint32_t both[] = {1, 1};
    return harness_->client().call(static_cast<uint16_t>(api::Opcode::cuMemGetInfo_v2),
                                   std::as_bytes(std::span(both)));
  }
  CUdeviceptr allocate(uint64_t bytes) {
    const auto answer = harness_->client().call(static_cast<uint16_t>(api::Opcode::cuMemAlloc_v2),
                                                std::as_bytes(std::span(&bytes, 1)));
    CUdeviceptr address = 0;
    if (answer && answer->result == CUDA_SUCCESS) {
      std::memcpy(&address, answer->body.data(), sizeof address);
    }
    return address;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<What> answers_;
  std::vector<uint64_t> movable_;  // bytes by device, reported with the latest kAtRest
  Parker parker_{[this](const ParkAnswer& answer) {
    std::lock_guard lock(mutex_);
    answers_.push_back(answer.what);
    if (answer.what == What::kAtRest) movable_ = answer.bytes;
    changed_.notify_all();
  }};
  Ledger ledger_ = std::move(Ledger::make()).value();
  std::shared_ptr<Quota> quota_;
  std::unique_ptr<SessionHarness> harness_;
};

TEST_F(SessionParkTest, ACommandWakesTheSessionAndIsAnsweredAfterwards) {
  park();
  CUresult result = CUDA_ERROR_UNKNOWN;
  std::thread client([&] { result = ping(); });
  EXPECT_EQ(answer(), What::kWakeWanted);
  send(Step::kAwake);
  client.join();
  EXPECT_EQ(result, CUDA_SUCCESS);
  EXPECT_EQ(harness_->end().code(), Code::kOk);
}

TEST_F(SessionParkTest, QuestionsAboutMemoryAreAnsweredFromBefore) {
  const auto before = memory_info();
  ASSERT_TRUE(before && before->result == CUDA_SUCCESS);
  park();
  const auto meanwhile = memory_info();
  ASSERT_TRUE(meanwhile);
  EXPECT_EQ(meanwhile->result, CUDA_SUCCESS);
  EXPECT_EQ(meanwhile->body, before->body);
  EXPECT_FALSE(has_answer());
  EXPECT_EQ(harness_->end().code(), Code::kOk);
}

TEST_F(SessionParkTest, ItsMemoryIsBookedAgainBeforeItWakes) {
  ASSERT_NE(allocate(16u << 20), 0u);
  ASSERT_EQ(ledger_.sum(0), 16u << 20);
  park();
  // The session has released its bytes in the ledger before it reads its next command.
  ASSERT_TRUE(memory_info());
  EXPECT_EQ(ledger_.sum(0), 0u);
  // Another session takes them.
  ledger_.clear(1);
  ASSERT_TRUE(ledger_.take(0, 1, kLimit, kLimit));
  std::thread client([&] { EXPECT_EQ(ping(), CUDA_SUCCESS); });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(has_answer());
  ledger_.give(0, 1, kLimit);
  EXPECT_EQ(answer(), What::kWakeWanted);
  EXPECT_EQ(ledger_.sum(0), 16u << 20);
  send(Step::kAwake);
  client.join();
}

TEST_F(SessionParkTest, ItsMemoryIsBookedOnTheGpuToWhichItMoves) {
  ASSERT_NE(allocate(16u << 20), 0u);
  park();
  send(ParkStep{Step::kPlace, 0, {}, {3}});
  EXPECT_EQ(answer(), What::kPlaced);
  send(Step::kWake);
  EXPECT_EQ(answer(), What::kWakeWanted);
  EXPECT_EQ(ledger_.sum(0), 0u);
  EXPECT_EQ(ledger_.sum(3), 16u << 20);
  // A kPlace after kWakeWanted, as if the two had crossed: the worker requests its wake-up again.
  send(ParkStep{Step::kPlace, 0, {}, {2}});
  EXPECT_EQ(answer(), What::kPlaced);
  EXPECT_EQ(answer(), What::kWakeWanted);
  EXPECT_EQ(ledger_.sum(2), 16u << 20);
  EXPECT_EQ(ledger_.sum(3), 0u);
  // The move to this place has failed in the driver, so the memory goes back.
  send(ParkStep{Step::kPlaceBack, 0, {}, {0}});
  send(Step::kAwake);
  EXPECT_EQ(ping(), CUDA_SUCCESS);
  EXPECT_EQ(ledger_.sum(0), 16u << 20);
  EXPECT_EQ(ledger_.sum(2), 0u);
}

TEST_F(SessionParkTest, AUserWakesIt) {
  park();
  send(Step::kWake);
  EXPECT_EQ(answer(), What::kWakeWanted);
  send(Step::kAwake);
  EXPECT_EQ(ping(), CUDA_SUCCESS);
}

TEST_F(SessionParkTest, AWishToWakeItThatComesTooEarlyIsKept) {
  send(Step::kRest);
  ASSERT_EQ(answer(), What::kAtRest);
  send(Step::kWake);
  send(Step::kParked);
  EXPECT_EQ(answer(), What::kWakeWanted);
  send(Step::kAwake);
  EXPECT_EQ(ping(), CUDA_SUCCESS);
}

TEST_F(SessionParkTest, ASessionThatIsNotParkedInTheEndGoesOn) {
  send(Step::kRest);
  ASSERT_EQ(answer(), What::kAtRest);
  std::thread client([&] { EXPECT_EQ(ping(), CUDA_SUCCESS); });
  send(Step::kStay);
  client.join();
  EXPECT_FALSE(has_answer());
}

TEST_F(SessionParkTest, StepsThatDoNotFitAreIgnored) {
  for (const Step step : {Step::kParked, Step::kStay, Step::kWake, Step::kAwake, Step::kSuspend}) {
    send(step);
  }
  EXPECT_EQ(ping(), CUDA_SUCCESS);
  park();
  for (const Step step : {Step::kRest, Step::kAwake, Step::kStay}) send(step);
  ASSERT_TRUE(memory_info());
  EXPECT_FALSE(has_answer());
  send(Step::kWake);
  EXPECT_EQ(answer(), What::kWakeWanted);
  send(Step::kAwake);
  EXPECT_EQ(ping(), CUDA_SUCCESS);
}

TEST_F(SessionParkTest, ASessionWithWorkInProgressDoesNotRest) {
  uint32_t* word = nullptr;
  CUstream stream = nullptr;
  const api::DriverTable& driver = harness_->driver();
  CUcontext context = nullptr;
  ASSERT_EQ(driver.cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
  ASSERT_EQ(driver.cuCtxSetCurrent(context), CUDA_SUCCESS);
  ASSERT_EQ(driver.cuMemHostAlloc(reinterpret_cast<void**>(&word), sizeof *word, 0), CUDA_SUCCESS);
  *word = 0;
  // Work in the legacy stream, which the session asks about.
  ASSERT_EQ(driver.cuStreamWaitValue32_v2(stream, reinterpret_cast<CUdeviceptr>(word), 1,
                                          CU_STREAM_WAIT_VALUE_EQ),
            CUDA_SUCCESS);
  send(Step::kRest);
  EXPECT_EQ(answer(), What::kBusy);
  std::atomic_ref(*word).store(1);
  ASSERT_EQ(driver.cuCtxSynchronize(), CUDA_SUCCESS);
  park();
  EXPECT_EQ(harness_->end().code(), Code::kOk);
  ASSERT_EQ(driver.cuMemFreeHost(word), CUDA_SUCCESS);
}

TEST_F(SessionParkTest, AParkedSessionStops) {
  park();
  harness_->loop().stop("the server stops");
  EXPECT_EQ(harness_->wait_end().code(), Code::kOk);
}

TEST_F(SessionParkTest, AParkedSessionEndsWithItsConnection) {
  park();
  harness_->cut();
  EXPECT_EQ(harness_->wait_end().code(), Code::kUnavailable);
}

// ---- memory that the worker moves itself

class MovableSessionTest : public SessionParkTest {
 protected:
  MovableSessionTest() : SessionParkTest(true) {}

  // The free memory of the device, in bytes.
  uint64_t free_bytes() {
    const api::DriverTable& driver = harness_->driver();
    CUcontext context = nullptr;
    size_t free = 0, total = 0;
    EXPECT_EQ(driver.cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    EXPECT_EQ(driver.cuCtxSetCurrent(context), CUDA_SUCCESS);
    EXPECT_EQ(driver.cuMemGetInfo_v2(&free, &total), CUDA_SUCCESS);
    return free;
  }
};

TEST_F(MovableSessionTest, ItsMemoryLeavesTheDeviceAndComesBack) {
  const CUdeviceptr address = allocate(16u << 20);
  ASSERT_NE(address, 0u);
  const uint64_t free = free_bytes();
  ASSERT_EQ(harness_->driver().cuMemsetD32_v2(address, 123, 4u << 20), CUDA_SUCCESS);
  ASSERT_EQ(harness_->driver().cuCtxSynchronize(), CUDA_SUCCESS);
  send(Step::kRest);
  ASSERT_EQ(answer(), What::kAtRest);
  EXPECT_EQ(movable_, std::vector<uint64_t>{16u << 20});
  send(Step::kMove);
  ASSERT_EQ(answer(), What::kMoved);
  EXPECT_EQ(free_bytes(), free + (16u << 20));
  EXPECT_EQ(ledger_.sum(0), 0u);
  std::thread client([&] { EXPECT_EQ(ping(), CUDA_SUCCESS); });
  EXPECT_EQ(answer(), What::kWakeWanted);
  EXPECT_EQ(ledger_.sum(0), 16u << 20);
  // Another program uses the memory: the session stays parked, and does not send a second request.
  CUdeviceptr other = 0;
  ASSERT_EQ(harness_->driver().cuMemAlloc_v2(&other, free_bytes() - (8u << 20)), CUDA_SUCCESS);
  send(Step::kMove);
  ASSERT_EQ(answer(), What::kNotMoved);
  ASSERT_EQ(harness_->driver().cuMemFree_v2(other), CUDA_SUCCESS);
  send(Step::kMove);
  ASSERT_EQ(answer(), What::kMoved);
  client.join();
  EXPECT_EQ(free_bytes(), free);
  unsigned word = 0;
  ASSERT_EQ(harness_->driver().cuMemcpyDtoH_v2(&word, address + (16u << 20) - 4, sizeof word),
            CUDA_SUCCESS);
  EXPECT_EQ(word, 123u);
}

TEST_F(MovableSessionTest, MemoryThatStaysKeepsItsPlaceInTheQuota) {
  ASSERT_NE(allocate(16u << 20), 0u);
  ASSERT_NE(allocate(1u << 20), 0u);
  send(Step::kRest);
  ASSERT_EQ(answer(), What::kAtRest);
  const uint64_t all = ledger_.sum(0);
  ASSERT_GT(all, 16u << 20);
  send(Step::kMove);
  ASSERT_EQ(answer(), What::kMoved);
  EXPECT_EQ(ledger_.sum(0), all - (16u << 20));
}

TEST_F(MovableSessionTest, ASessionWithoutSuchMemoryIsLeftToTheDriver) {
  ASSERT_NE(allocate(1u << 20), 0u);
  send(Step::kRest);
  ASSERT_EQ(answer(), What::kAtRest);
  EXPECT_TRUE(movable_.empty());
}

class OversubscribedSessionTest : public SessionParkTest {
 protected:
  OversubscribedSessionTest() : SessionParkTest(false, true) {}
  void give_room(uint64_t room) { send(ParkStep{Step::kRoom, room}); }
};

TEST_F(OversubscribedSessionTest, AnAllocationThatDoesNotFitIsRepeatedWhileTheDaemonMakesRoom) {
  constexpr uint64_t kTooMuch = uint64_t{1} << 50;
  CUdeviceptr address = 1;
  std::thread client([&] { address = allocate(kTooMuch); });
  EXPECT_EQ(answer(), What::kRoomWanted);
  send(Step::kRest);  // handled after the command
  give_room(1);
  EXPECT_EQ(answer(), What::kRoomWanted);
  give_room(0);
  EXPECT_EQ(answer(), What::kRoomUsed);
  EXPECT_EQ(answer(), What::kRoomAsked);  // for queries of free memory during the rest
  give_room(0);
  EXPECT_EQ(answer(), What::kAtRest);
  send(Step::kStay);
  client.join();
  EXPECT_EQ(address, 0u);
  EXPECT_EQ(harness_->end().code(), Code::kOk);
}

TEST_F(OversubscribedSessionTest, AnAllocationThatFitsAsksNobody) {
  EXPECT_NE(allocate(1u << 20), 0u);
  EXPECT_FALSE(has_answer());
  EXPECT_EQ(harness_->end().code(), Code::kOk);
}

TEST_F(OversubscribedSessionTest, FreeMemoryIncludesWhatTheDaemonCouldMakeFree) {
  ASSERT_NE(allocate(16u << 20), 0u);
  uint64_t free[2] = {};
  for (const uint64_t more : {uint64_t{0}, uint64_t{1} << 40}) {
    std::optional<ProtocolClient::Answer> info;
    std::thread client([&] { info = memory_info(); });
    EXPECT_EQ(answer(), What::kRoomAsked);
    give_room(more);
    client.join();
    ASSERT_TRUE(info && info->result == CUDA_SUCCESS);
    std::memcpy(&free[more != 0], info->body.data(), sizeof free[0]);
  }
  EXPECT_GE(free[1], free[0] + (16u << 20));  // at most all of the device
  EXPECT_EQ(harness_->end().code(), Code::kOk);
}

TEST_F(OversubscribedSessionTest, ASessionThatEndsDoesNotWaitForRoom) {
  CUdeviceptr address = 1;
  std::thread client([&] { address = allocate(uint64_t{1} << 50); });
  EXPECT_EQ(answer(), What::kRoomWanted);
  harness_->loop().stop();
  EXPECT_EQ(answer(), What::kRoomUsed);
  client.join();
}

}  // namespace
}  // namespace rcuda::test
