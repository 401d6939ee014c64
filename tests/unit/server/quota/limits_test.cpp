// Sessions on softgpu whose copies, duration and idleness are limited, by a clock of the test.
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <gtest/gtest.h>

#include "api/opcodes.h"
#include "common/wire/codec.h"
#include "server/quota/ledger.h"
#include "tests/support/session_harness.h"

namespace rcuda::server {
namespace {

using test::ProtocolClient;
using test::SessionHarness;
using wire::Custom;

constexpr uint64_t kSecond = 1'000'000'000;
constexpr uint64_t kStart = 1'000 * kSecond;

struct Nothing {};

class LimitsTest : public ::testing::Test {
 protected:
  // Starts a session at kStart. `bandwidth`: in bytes per second; 0: not limited.
  void start(SessionLimits limits, uint64_t bandwidth = 0,
             const char* medium = SessionHarness::kMedium) {
    SessionHarness::Options options;
    options.medium = &test::medium_named(medium);
    options.limits = limits;
    options.now = [this] {
      ++looks_;
      return now_.load();
    };
    if (bandwidth != 0) {
      ledger_ = std::make_unique<Ledger>(std::move(Ledger::make()).value());
      ledger_->clear(0);
      std::vector<UniqueFd> memory;
      memory.emplace_back(::fcntl(ledger_->descriptor(), F_DUPFD_CLOEXEC, 0));
      auto quota = Quota::make({{.of = "each session", .bandwidth = bandwidth}}, std::move(memory));
      options.quota = std::make_shared<Quota>(std::move(quota).value());
    }
    session_ = std::make_unique<SessionHarness>(options);
    auto& devices = session_->driver();
    CUcontext context = nullptr;
    devices.cuDevicePrimaryCtxRetain(&context, 0);
    devices.cuCtxSetCurrent(context);
    ASSERT_EQ(devices.cuMemAlloc_v2(&memory_, kBytes), CUDA_SUCCESS);
  }
  void TearDown() override {
    session_->driver().cuMemFree_v2(memory_);
    session_->driver().cuDevicePrimaryCtxRelease_v2(0);
  }

  ProtocolClient& client() { return session_->client(); }
  void set_clock(uint64_t since_start) {
    now_ = kStart + since_start;
    session_->worker_link().interrupt();
  }
  // Returns when the worker has read its clock 50 times, or has made the copy `copy`, which it
  // should hold back.
  void let_worker_look(uint64_t copy = UINT64_MAX) {
    const int until = looks_ + 50;
    while (looks_ < until && !client().word_reached(kWord, copy)) {
      session_->worker_link().interrupt();
      std::this_thread::yield();
    }
  }

  // Posts a copy from the staging region. It signals kWord with this sequence.
  static constexpr uint32_t kWord = 3;
  Status post_copy(uint64_t bytes, uint64_t sequence) {
    wire::CopyStagedBody copy{};
    copy.device_address = memory_;
    copy.bytes = bytes;
    copy.to_device = 1;
    copy.word = kWord;
    copy.sequence = sequence;
    return client().post(Custom::kCopyStaged, copy);
  }
  // A round trip. When it returns, the worker has counted it as use of the session.
  bool ping() {
    const auto answer = client().call(Custom::kPing, Nothing{});
    if (ledger_ == nullptr) let_worker_look();
    return answer && answer->result == CUDA_SUCCESS;
  }
  // The text of the next event, which must be a notice.
  std::string next_notice(uint32_t ends) {
    const std::vector<std::byte> frame = client().next_event();
    wire::NoticeEvent event{};
    EXPECT_GE(frame.size(), sizeof event);
    if (frame.size() < sizeof event) return {};
    std::memcpy(&event, frame.data(), sizeof event);
    EXPECT_EQ(event.header.event, wire::Event::kNotice);
    EXPECT_EQ(event.ends, ends);
    EXPECT_EQ(event.text_bytes, frame.size() - sizeof event);
    return {reinterpret_cast<const char*>(frame.data()) + sizeof event,
            frame.size() - sizeof event};
  }
  // Closes the client's Link, after the client has read why the session ends.
  Status close_and_wait() {
    client().link().close();
    return session_->wait_end();
  }
  // The bytes that the session has booked. With kOne, one byte takes one nanosecond.
  static constexpr uint64_t kOne = kSecond;
  uint64_t booked() {
    const uint64_t next = ledger_->book_copy(0, 0, kOne, 0);
    return next == 0 ? 0 : next - kStart;
  }

  static constexpr size_t kBytes = 1 << 20;
  std::atomic<uint64_t> now_{kStart};
  std::atomic<int> looks_{0};
  std::unique_ptr<Ledger> ledger_;
  std::unique_ptr<SessionHarness> session_;
  CUdeviceptr memory_ = 0;
};

TEST_F(LimitsTest, ACopyWaitsForTheBandwidthOfTheOneBeforeIt) {
  start({}, kBytes);
  ASSERT_TRUE(post_copy(kBytes, 1).ok());  // takes a second
  ASSERT_EQ(client().wait_word(kWord, 1), CUDA_SUCCESS);
  EXPECT_TRUE(ping());  // commands before the next copy do not wait
  ASSERT_TRUE(post_copy(16, 2).ok());
  ASSERT_TRUE(client().post(Custom::kSignal, wire::SignalBody{0, 9, 1}).ok());
  let_worker_look(2);
  EXPECT_FALSE(client().word_reached(kWord, 2));
  EXPECT_FALSE(client().word_reached(9, 1));  // the order of commands stays
  set_clock(kSecond / 2);
  let_worker_look(2);
  EXPECT_FALSE(client().word_reached(kWord, 2));
  set_clock(kSecond);
  EXPECT_EQ(client().wait_word(kWord, 2), CUDA_SUCCESS);
  EXPECT_EQ(client().wait_word(9, 1), CUDA_SUCCESS);
}

TEST_F(LimitsTest, CopiesOfADeviceDoNotWait) {
  start({}, kBytes);
  ASSERT_TRUE(post_copy(kBytes, 1).ok());
  wire::CopyBody copy{};
  copy.source = memory_;
  copy.destination = memory_ + kBytes / 2;
  copy.bytes = kBytes / 2;
  copy.word = 9;
  copy.sequence = 1;
  ASSERT_TRUE(client().post(Custom::kCopy, copy).ok());
  EXPECT_EQ(client().wait_word(9, 1), CUDA_SUCCESS);
}

// While a copy waits, the executor thread serves what is in progress.
TEST_F(LimitsTest, WorkInProgressEndsWhileACopyWaits) {
  start({}, kBytes);
  ASSERT_TRUE(post_copy(kBytes, 1).ok());
  ASSERT_EQ(client().wait_word(kWord, 1), CUDA_SUCCESS);
  ASSERT_TRUE(client().post(Custom::kLaunchHost, wire::LaunchHostBody{1, 0, 0}).ok());
  ASSERT_TRUE(client().post(Custom::kSignal, wire::SignalBody{0, 9, 1}).ok());
  ASSERT_TRUE(post_copy(16, 2).ok());
  let_worker_look(2);
  wire::HostCallbackEvent event{};
  const std::vector<std::byte> frame = client().next_event();
  ASSERT_EQ(frame.size(), sizeof event);
  std::memcpy(&event, frame.data(), sizeof event);
  client().acknowledge(event.slot, event.sequence);
  EXPECT_EQ(client().wait_word(9, 1), CUDA_SUCCESS);
  EXPECT_FALSE(client().word_reached(kWord, 2));
  set_clock(kSecond);
  EXPECT_EQ(client().wait_word(kWord, 2), CUDA_SUCCESS);
}

TEST_F(LimitsTest, EveryCopyBetweenClientAndDeviceCounts) {
  start({}, kOne);
  uint64_t before = 0;
  const auto counts = [&](uint64_t bytes) {
    EXPECT_TRUE(ping());
    EXPECT_EQ(booked() - std::exchange(before, booked()), bytes);
  };
  std::vector<std::byte> bytes(100);
  ASSERT_TRUE(
      client().post(Custom::kCopyInline, wire::CopyInlineBody{memory_, 100, 0}, bytes).ok());
  counts(100);
  ASSERT_TRUE(client().call(Custom::kCopyToReply, wire::CopyToReplyBody{memory_, 50, 0}));
  counts(50);
  ASSERT_TRUE(post_copy(4096, 1).ok());
  counts(4096);

  auto* page = static_cast<std::byte*>(std::aligned_alloc(4096, 8192));
  std::memset(page, 1, 8192);
  const wire::HostExposeBody expose{reinterpret_cast<uint64_t>(page), 8192, 0, 0, 1};
  auto exposed = client().call(Custom::kHostExpose, expose);
  ASSERT_TRUE(exposed && exposed->result == CUDA_SUCCESS);
  wire::CopyBody copy{};
  copy.source = expose.address + 4096;
  copy.destination = memory_;
  copy.bytes = 2000;
  ASSERT_TRUE(client().post(Custom::kCopy, copy).ok());
  counts(2000);
  std::swap(copy.source, copy.destination);
  ASSERT_TRUE(client().post(Custom::kCopy, copy).ok());
  counts(2000);

  wire::CopyShapeBody shape{};
  shape.source = {0, 64, 4, 0, 0, 0, 0, wire::MemoryType::kHost, 0};
  shape.source_staged = 1;
  shape.destination = {memory_, 256, 4, 0, 0, 0, 0, wire::MemoryType::kDevice, 0};
  shape.width_bytes = 64;
  shape.height = 4;
  shape.depth = 1;
  shape.word = 4;
  shape.sequence = 1;
  ASSERT_TRUE(client().post(Custom::kCopyShape, shape).ok());
  counts(256);
  shape.source_staged = 0;
  shape.source = {expose.address - 128, 128, 4, 0, 1, 0, 0, wire::MemoryType::kUnified, 0};
  shape.sequence = 2;
  ASSERT_TRUE(client().post(Custom::kCopyShape, shape).ok());
  counts(256);
  EXPECT_EQ(client().wait_word(4, 2), CUDA_SUCCESS);

  // Neither copies of a device nor refused ones count.
  shape.source = {memory_ + 4096, 64, 4, 0, 0, 0, 0, wire::MemoryType::kDevice, 0};
  shape.sequence = 3;
  ASSERT_TRUE(client().post(Custom::kCopyShape, shape).ok());
  copy.source = memory_;
  copy.destination = memory_ + 4096;
  ASSERT_TRUE(client().post(Custom::kCopy, copy).ok());
  copy.source = expose.address;
  copy.destination = 0x1234;
  copy.bytes = 1ull << 60;
  EXPECT_TRUE(client().call(Custom::kCopy, copy));
  wire::PeerCopyBody peer{};
  peer.link = 7;
  peer.width_bytes = peer.height = peer.depth = 1ull << 20;
  EXPECT_TRUE(client().call(Custom::kPeerCopy, peer));
  counts(0);
  const auto withdrawn =
      client().call(Custom::kHostUnexpose, wire::HostUnexposeBody{expose.address});
  EXPECT_TRUE(withdrawn && withdrawn->result == CUDA_SUCCESS);
  std::free(page);
}

// The worker cannot hold back bytes that the client sends together with the command. So if copies
// are limited, the worker offers no shadow for such bytes.
TEST_F(LimitsTest, WhereCopiesAreHeldBackTheWorkerAsksForTheirBytes) {
  for (const uint64_t bandwidth : {uint64_t{0}, kOne}) {
    start({}, bandwidth, "tcp");
    auto* page = static_cast<std::byte*>(std::aligned_alloc(4096, 4096));
    std::vector<std::byte> here(4096);
    const auto region = client().link().expose(here.data(), here.size());
    ASSERT_TRUE(region.ok());
    const wire::HostExposeBody expose{
        reinterpret_cast<uint64_t>(page), here.size(), static_cast<uint64_t>(region->id), 0, 0, 0};
    const auto exposed = client().call(Custom::kHostExpose, expose);
    ASSERT_TRUE(exposed && exposed->result == CUDA_SUCCESS);
    EXPECT_EQ(wire::Decoder(exposed->body).value<uint64_t>() != 0, bandwidth == 0);
    const auto withdrawn =
        client().call(Custom::kHostUnexpose, wire::HostUnexposeBody{expose.address, expose.region});
    EXPECT_TRUE(withdrawn && withdrawn->result == CUDA_SUCCESS);
    std::free(page);
    if (bandwidth == 0) TearDown();
  }
}

TEST_F(LimitsTest, AGraphsCopiesCountWithEachLaunch) {
  start({}, kOne);
  const auto call = [&](api::Opcode opcode, auto... values) {
    wire::Encoder out;
    (out.value(values), ...);
    const auto answer = client().call(static_cast<uint16_t>(opcode), out.body());
    return answer ? answer->result : CUDA_ERROR_UNKNOWN;
  };
  auto* page = static_cast<std::byte*>(std::aligned_alloc(4096, 4096));
  std::memset(page, 1, 4096);
  const wire::HostExposeBody expose{reinterpret_cast<uint64_t>(page), 4096, 0, 0, 1};
  auto exposed = client().call(Custom::kHostExpose, expose);
  ASSERT_TRUE(exposed && exposed->result == CUDA_SUCCESS);
  const wire::ObjectId stream = 1, executable = 1;
  ASSERT_EQ(call(api::Opcode::cuStreamCreate, unsigned{CU_STREAM_NON_BLOCKING}, stream),
            CUDA_SUCCESS);
  ASSERT_EQ(call(api::Opcode::cuStreamBeginCapture_v2, stream,
                 static_cast<int32_t>(CU_STREAM_CAPTURE_MODE_RELAXED)),
            CUDA_SUCCESS);
  wire::CopyBody copy{};
  copy.stream = stream;
  copy.source = expose.address;
  copy.destination = memory_;
  copy.bytes = 2000;
  ASSERT_TRUE(client().post(Custom::kCopy, copy).ok());
  copy.source = memory_;
  copy.destination = memory_ + 4096;
  ASSERT_TRUE(client().post(Custom::kCopy, copy).ok());  // within the device
  wire::Encoder end;
  end.value(stream);
  end.value(uint32_t{1});
  const auto ended =
      client().call(static_cast<uint16_t>(api::Opcode::cuStreamEndCapture), end.body());
  ASSERT_TRUE(ended && ended->result == CUDA_SUCCESS);
  const auto graph = wire::Decoder(ended->body).value<wire::ObjectId>();
  ASSERT_EQ(call(api::Opcode::cuGraphInstantiateWithFlags, graph, uint64_t{0}, executable),
            CUDA_SUCCESS);
  EXPECT_EQ(booked(), 0u);
  ASSERT_EQ(call(api::Opcode::cuGraphLaunch, executable, stream), CUDA_SUCCESS);
  EXPECT_EQ(booked(), 2000u);
  ASSERT_EQ(call(api::Opcode::cuGraphLaunch, executable, stream), CUDA_SUCCESS);
  EXPECT_EQ(booked(), 4000u);
  EXPECT_NE(call(api::Opcode::cuGraphLaunch, wire::ObjectId{9}, stream), CUDA_SUCCESS);
  EXPECT_EQ(booked(), 4000u);
  // A launch waits like a copy.
  ledger_->book_copy(0, kSecond, kOne, now_);
  const uint64_t before = booked();
  wire::Encoder out;
  out.value(executable);
  out.value(stream);
  ASSERT_TRUE(client().post(static_cast<uint16_t>(api::Opcode::cuGraphLaunch), out.body()).ok());
  let_worker_look();
  EXPECT_EQ(booked(), before);
  set_clock(2 * kSecond);
  EXPECT_TRUE(ping());
  EXPECT_EQ(booked(), 2 * kSecond + 2000);
  client().call(Custom::kHostUnexpose, wire::HostUnexposeBody{expose.address});
  std::free(page);
}

TEST_F(LimitsTest, ASessionEndsAfterItsTime) {
  start({.session_time = std::chrono::seconds(1000)});
  EXPECT_TRUE(ping());
  set_clock(939 * kSecond);
  let_worker_look();
  EXPECT_TRUE(ping());
  set_clock(940 * kSecond);
  EXPECT_EQ(next_notice(0),
            "this session ends in 1m: the server limits sessions to 1000s (session_time)");
  EXPECT_TRUE(ping());
  set_clock(1000 * kSecond);
  EXPECT_EQ(next_notice(1),
            "the server ends this session: it has lasted 1000s, the limit of the server's "
            "administrator (session_time)");
  const Status ended = close_and_wait();
  EXPECT_EQ(ended.code(), Code::kUnavailable);
  EXPECT_NE(ended.context().find("session_time"), std::string::npos) << ended.message();
}

// The end must not depend on the executor thread, which may be blocked in a call of the driver.
TEST_F(LimitsTest, AnotherThreadSeesThatTheTimeIsOver) {
  start({.session_time = std::chrono::seconds(10)});
  EXPECT_TRUE(session_->loop().over().ok());
  now_ = kStart + 10 * kSecond;
  EXPECT_EQ(session_->loop().over().code(), Code::kUnavailable);
}

TEST_F(LimitsTest, AnIdleSessionIsWarnedAndEnds) {
  start({.idle_time = std::chrono::seconds(100)});
  EXPECT_TRUE(ping());
  set_clock(90 * kSecond);
  EXPECT_EQ(next_notice(0),
            "this session ends in 10s if it stays idle: the server allows 100s without work "
            "(idle_time)");
  EXPECT_TRUE(ping());  // used: the time starts again
  set_clock(179 * kSecond);
  let_worker_look();
  set_clock(180 * kSecond);
  next_notice(0);
  set_clock(190 * kSecond);
  EXPECT_EQ(next_notice(1),
            "the server ends this session: it has been idle for 100s, the limit of the server's "
            "administrator (idle_time)");
  EXPECT_NE(close_and_wait().context().find("idle_time"), std::string::npos);
}

TEST_F(LimitsTest, ASessionThatComputesIsNotIdle) {
  start({.idle_time = std::chrono::seconds(100)});
  ASSERT_TRUE(client().post(Custom::kLaunchHost, wire::LaunchHostBody{1, 0, 0}).ok());
  wire::HostCallbackEvent event{};
  const std::vector<std::byte> frame = client().next_event();
  ASSERT_EQ(frame.size(), sizeof event);
  std::memcpy(&event, frame.data(), sizeof event);
  for (uint64_t step = 1; step <= 5; ++step) {
    set_clock(step * 1000 * kSecond);
    let_worker_look();
  }
  client().acknowledge(event.slot, event.sequence);
  session_->driver().cuCtxSynchronize();
  // The work may have ended at this moment, so the time starts.
  set_clock(6000 * kSecond);
  let_worker_look();
  set_clock(6090 * kSecond);
  next_notice(0);
  EXPECT_TRUE(ping());
}

// A client that reads no events must not prolong its session, nor block its worker's thread.
TEST_F(LimitsTest, AClientThatReadsNothingLosesItsSessionToo) {
  start({.session_time = std::chrono::seconds(100)});
  EventSink& events = session_->loop().executor().answers.events();
  Status sent;
  while (sent.ok()) sent = events.notice(false, std::string(1000, 'x'));
  ASSERT_EQ(sent.code(), Code::kTimeout) << sent.message();
  set_clock(95 * kSecond);
  let_worker_look();
  EXPECT_TRUE(ping());
  set_clock(100 * kSecond);
  EXPECT_EQ(session_->wait_end().code(), Code::kUnavailable);
}

}  // namespace
}  // namespace rcuda::server
