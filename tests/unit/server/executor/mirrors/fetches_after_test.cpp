// Fetches that a client requests together with a wait.

#include <atomic>
#include <cstring>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/counted_host_functions.h"
#include "tests/support/session_harness.h"

namespace rcuda::server {
namespace {

using wire::Custom;
using Window = wire::ClientWindow;

class FetchesAfterTest : public ::testing::Test {
 protected:
  static constexpr uint32_t kWord = 9, kCall = 77, kSlot = Window::kSmallReplyBytes * 100;

  void SetUp() override {
    CUdevice device;
    CUcontext context;
    CUdeviceptr address;
    driver().cuDeviceGet(&device, 0);
    driver().cuDevicePrimaryCtxRetain(&context, device);
    driver().cuCtxSetCurrent(context);
    ASSERT_EQ(driver().cuMemAllocManaged(&address, sizeof(uint64_t), CU_MEM_ATTACH_GLOBAL),
              CUDA_SUCCESS);
    memory_ = reinterpret_cast<uint64_t*>(address);
    *memory_ = 1;
    auto added =
        client().call(Custom::kMirror, wire::MirrorBody{address, sizeof *memory_, 0, 4096});
    ASSERT_TRUE(added);
    ASSERT_EQ(added->result, CUDA_SUCCESS);
  }
  void TearDown() override { driver().cuDevicePrimaryCtxRelease_v2(0); }

  test::ProtocolClient& client() { return session_.client(); }
  const api::DriverTable& driver() { return session_.driver(); }

  // Requests the memory at `address` as it is when the word has this sequence.
  void ask(uint64_t sequence, const void* address) {
    const wire::MirrorFetchBehindBody body{reinterpret_cast<uint64_t>(address), sequence, kWord, 0};
    send(Custom::kMirrorFetchBehind, std::as_bytes(std::span(&body, 1)));
  }
  // Requests the changes since the answer `answer`.
  void ask_for_news(uint64_t sequence, uint64_t answer) {
    struct {
      wire::MirrorNewsBody body;
      wire::MirrorKnown known;
    } const asked{{1, sequence, kWord, 0}, {reinterpret_cast<uint64_t>(memory_), answer}};
    send(Custom::kMirrorNews, std::as_bytes(std::span(&asked, 1)));
  }
  void send(Custom opcode, std::span<const std::byte> body) {
    wire::CommandHeader header{};
    header.context = wire::primary_context_id(0);
    header.call = kCall;
    header.reply_slot = slot();
    header.reply_bytes = Window::kSmallReplyBytes;
    header.thread = 1;
    ASSERT_TRUE(client().channel().send(header, {opcode, body}).ok());
  }
  static uint32_t slot() { return static_cast<uint32_t>(Window::kSmallReplies) + kSlot; }
  uint64_t stamp() {
    auto* const at = client().link().window().data() + slot() + Window::kSmallReplyBytes - 8;
    return reinterpret_cast<std::atomic<uint64_t>*>(at)->load(std::memory_order_acquire);
  }
  bool answered() { return wire::ReplyStamp::call(stamp()) == kCall; }
  // Waits for the reply. Returns its result, and stores its bytes.
  CUresult answer(std::vector<std::byte>* bytes) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    EXPECT_TRUE(client().link().wait([this] { return answered(); }, deadline).ok());
    const uint32_t length = wire::ReplyStamp::body_bytes(stamp());
    const std::byte* const end =
        client().link().window().data() + slot() + Window::kSmallReplyBytes - 8;
    const std::byte* const begin = end - ((length + 7) & ~7u);
    wire::ReplyHeader header;
    std::memcpy(&header, begin, sizeof header);
    bytes->assign(begin + sizeof header, begin + length);
    return static_cast<CUresult>(header.result);
  }
  void ping() { EXPECT_TRUE(client().call(static_cast<uint16_t>(Custom::kPing), {})); }
  void signal(uint64_t sequence) {
    EXPECT_TRUE(client().post(Custom::kSignal, wire::SignalBody{0, kWord, sequence}).ok());
  }

  test::CountedHostFunctions host_functions_;
  test::SessionHarness session_;
  uint64_t* memory_ = nullptr;
};

TEST_F(FetchesAfterTest, TheBytesAreThoseAtTheEndOfTheWait) {
  ask(5, memory_);
  signal(4);
  EXPECT_TRUE(client().wait_word(kWord, 4));
  ping();
  EXPECT_FALSE(answered());
  *memory_ = 42;
  signal(5);
  std::vector<std::byte> bytes;
  ASSERT_EQ(answer(&bytes), CUDA_SUCCESS);
  ASSERT_EQ(bytes.size(), sizeof(wire::MirrorState) + sizeof *memory_);
  EXPECT_EQ(std::memcmp(&bytes[sizeof(wire::MirrorState)], memory_, sizeof *memory_), 0);
  EXPECT_EQ(host_functions_.count(), 0);  // drivers run host functions late
}

TEST_F(FetchesAfterTest, AWaitThatIsOverIsAnsweredAtOnce) {
  signal(5);
  EXPECT_TRUE(client().wait_word(kWord, 5));
  ask(5, memory_);
  std::vector<std::byte> bytes;
  EXPECT_EQ(answer(&bytes), CUDA_SUCCESS);
}

TEST_F(FetchesAfterTest, NewsAreThoseAtTheEndOfTheWait) {
  struct {
    wire::MirrorNewsHead head;
    wire::MirrorPiece piece;
    uint64_t value;
  } news;
  const auto expect = [&](uint64_t number) {
    std::vector<std::byte> bytes;
    ASSERT_EQ(answer(&bytes), CUDA_SUCCESS);
    ASSERT_EQ(bytes.size(), sizeof news);
    std::memcpy(&news, bytes.data(), sizeof news);
    EXPECT_EQ(news.head.pieces, 1u);
    EXPECT_EQ(news.head.state.answer, number);
    EXPECT_EQ(news.value, *memory_);
  };
  ask_for_news(5, 0);
  ping();
  EXPECT_FALSE(answered());
  *memory_ = 42;
  signal(5);
  expect(1);
  std::memset(client().link().window().data() + slot() + Window::kSmallReplyBytes - 8, 0, 8);
  *memory_ = 43;
  ask_for_news(5, 1);
  expect(2);
}

TEST_F(FetchesAfterTest, MemoryThatIsNotMirroredIsRefused) {
  ask(5, memory_ + 1);
  signal(5);
  std::vector<std::byte> bytes;
  EXPECT_EQ(answer(&bytes), CUDA_ERROR_INVALID_VALUE);
}

// The worker may have to wait for the client's announcement of the region before it sends the first
// bytes.
TEST(FetchTest, OnlyTheFirstBytesOfARegionNeedAHostFunction) {
  test::CountedHostFunctions host_functions;
  test::SessionHarness session({.medium = &test::medium_named("tcp")});
  test::ProtocolClient& client = session.client();
  const api::DriverTable& driver = session.driver();
  CUdevice device;
  CUcontext context;
  CUdeviceptr address;
  ASSERT_EQ(driver.cuDeviceGet(&device, 0), CUDA_SUCCESS);
  ASSERT_EQ(driver.cuDevicePrimaryCtxRetain(&context, device), CUDA_SUCCESS);
  ASSERT_EQ(driver.cuCtxSetCurrent(context), CUDA_SUCCESS);
  constexpr size_t kBytes = transport::kMaxRegionPut;
  ASSERT_EQ(driver.cuMemAllocManaged(&address, kBytes, CU_MEM_ATTACH_GLOBAL), CUDA_SUCCESS);
  std::vector<std::byte> here(2 * kBytes);
  auto region = client.link().expose(here.data(), here.size());
  ASSERT_TRUE(region.ok());
  const wire::MirrorBody body{address, kBytes, static_cast<uint64_t>(region->id), kBytes};
  ASSERT_EQ(client.call(Custom::kMirror, body)->result, CUDA_SUCCESS);
  auto* const memory = reinterpret_cast<std::byte*>(address);
  for (int round = 1; round <= 3; ++round) {
    memory[0] = memory[kBytes - 1] = static_cast<std::byte>(round);
    ASSERT_EQ(client.call(Custom::kMirrorFetch, wire::MirrorFetchBody{address})->result,
              CUDA_SUCCESS);
    EXPECT_EQ(std::memcmp(here.data() + kBytes, memory, kBytes), 0);
    EXPECT_EQ(host_functions.count(), 1);
  }
  // From now on the worker remembers which bytes the client has.
  const auto news = [&](uint64_t answer, wire::MirrorNewsHead* head) {
    struct {
      wire::MirrorNewsBody body{1};
      wire::MirrorKnown known;
    } const asked{.known = {address, answer}};
    const auto told = client.call(static_cast<uint16_t>(Custom::kMirrorNews),
                                  std::as_bytes(std::span(&asked, 1)));
    ASSERT_TRUE(told && told->result == CUDA_SUCCESS);
    std::memcpy(head, told->body.data(), sizeof *head);
    EXPECT_EQ(told->body.size(), sizeof *head + head->pieces * (sizeof(wire::MirrorPiece) + 64));
  };
  wire::MirrorNewsHead head{};
  news(0, &head);
  EXPECT_EQ(head.fetch_all, 1u);
  const auto all = client.call(Custom::kMirrorFetch, wire::MirrorFetchBody{address});
  wire::MirrorState state{};
  ASSERT_EQ(all->body.size(), sizeof state);
  std::memcpy(&state, all->body.data(), sizeof state);
  EXPECT_EQ(state.answer, 1u);
  memory[100] = std::byte{77};
  news(1, &head);
  EXPECT_EQ(head.fetch_all, 0u);
  EXPECT_EQ(head.pieces, 1u);
  EXPECT_EQ(head.state.answer, 2u);
  news(2, &head);
  EXPECT_EQ(head.pieces, 0u);
  EXPECT_TRUE(session.end().ok());
  driver.cuDevicePrimaryCtxRelease_v2(0);
}

}  // namespace
}  // namespace rcuda::server
