// A session with a worker that errs, dies or lies.
#include "client/session/session.h"

#include <atomic>
#include <cstring>
#include <future>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <sys/mman.h>

#include "api/traits.h"
#include "client/objects/kinds.h"
#include "client/objects/named.h"
#include "client/route/find_route.h"
#include "client/session/staging.h"
#include "client/session/wait.h"
#include "common/base/log.h"
#include "tests/support/host_name.h"
#include "tests/unit/client/two_puppets.h"

namespace rcuda::client {
namespace {

using wire::Custom;
using Answer = test::PuppetServer::Answer;
using Window = wire::ClientWindow;

class SessionTest : public ::testing::Test {
 protected:
  Session& session() { return *lone_.session; }
  test::PuppetServer& puppet() { return lone_.puppet; }
  CUresult ping() { return lone_.ping(); }
  CUresult post_something() {
    const wire::CopyInlineBody body{0x1000, 0, 0};
    return post(in_context(), body);
  }
  Route in_context() { return session().in_context(1); }
  // Writes like a worker, at any offset of the client's window.
  void write(uint64_t offset, uint64_t word) {
    ASSERT_TRUE(puppet()
                    .link()
                    .put(offset, std::as_bytes(std::span(&word, 1)), {}, transport::Wake::kYes)
                    .ok());
  }
  void expect_lost() {
    EXPECT_TRUE(session().lost());
    EXPECT_EQ(ping(), kSessionLost);
    EXPECT_EQ(post_something(), kSessionLost);
    EXPECT_EQ(synchronize(in_context()), kSessionLost);
    EXPECT_EQ(session().take_error(), kSessionLost);  // as for earlier commands
  }

  LoneSession lone_;
};

TEST(SessionOpen, AllConnectionsGoToOneHost) {
  const test::MovingHost host;
  const transport::Medium* const tcp = transport::find_medium("tcp");
  std::thread server([&host, tcp] {
    const auto soon = [] { return std::chrono::steady_clock::now() + std::chrono::seconds(60); };
    test::MovingHost::Caller client = host.accept();
    EXPECT_TRUE(client.to_first);
    const int socket = client.socket.get();
    EXPECT_TRUE(wire::read_message(socket, soon()).ok());
    const wire::Welcome welcome = test::PuppetServer::welcome_with(1);
    EXPECT_TRUE(
        wire::write_message(socket, wire::MessageType::kWelcome, wire::encode(welcome), soon())
            .ok());
    transport::Bootstrap bootstrap;
    bootstrap.control = std::move(client.socket);
    bootstrap.server = true;
    bootstrap.accept_stream = [&host](int) -> Result<Socket> {
      EXPECT_TRUE(host.accept().to_first);
      return Status(Code::kUnavailable, "that was to be seen");
    };
    EXPECT_FALSE(transport::make_link(*tcp, std::move(bootstrap), {}).ok());
  });
  wire::Credentials credentials;
  ASSERT_TRUE(credentials.security.set("none", "RCUDA_SECURITY", "the test").ok());
  SessionOptions options;
  options.medium = tcp;
  options.credentials = &credentials;
  const auto opened =
      Session::open({nullptr, test::HostName::kName, host.port(), {0}, {0}}, options);
  EXPECT_FALSE(opened.ok());
  server.join();
}

// ---- builds ----

TEST(SessionOpen, AServerWithoutACommandThatEveryProgramNeedsIsRefused) {
  wire::Welcome welcome = test::PuppetServer::welcome_with(1);
  welcome.lacking = {static_cast<uint32_t>(Custom::kLaunch),
                     static_cast<uint32_t>(Custom::kSignal)};
  test::PuppetServer puppet(welcome);
  puppet.let_client_leave();
  const auto opened = Session::open({nullptr, "127.0.0.1", puppet.port(), {0}, {0}}, {});
  ASSERT_FALSE(opened.ok());
  EXPECT_NE(opened.status().message().find("without a compatible Signal"), std::string::npos)
      << opened.status().message();
}

TEST(LackingCommandsTest, EveryCommandThatWritesAWordIsNeeded) {
  int needed = 0;
  for (uint32_t opcode = 0; opcode < api::kMaxOpcodes; ++opcode) {
    LackingCommands lacking;
    const bool refused = !lacking.set({opcode}).ok();
    EXPECT_NE(refused, lacking.contains(static_cast<uint16_t>(opcode)));
    EXPECT_TRUE(refused || !api::traits_of(static_cast<uint16_t>(opcode)).signals()) << opcode;
    needed += refused;
  }
  EXPECT_GT(needed, 5);
  EXPECT_LT(needed, 20);
}

// ---- waits ----

TEST_F(SessionTest, AWaitEndsWithTheMarkOfTheGpu) {
  if (!session().traits().shares_pages) GTEST_SKIP() << "no marks";
  puppet().on(Custom::kSignal, [this](const auto& command) -> std::optional<Answer> {
    const auto body = command.template as<wire::SignalBody>();
    std::atomic_ref(puppet().marks()[body.word]).store(body.sequence, std::memory_order_release);
    // The GPU's write does not wake a client that already sleeps. The worker does, by a write to a
    // completion word; here to another word.
    write(Window::kCompletionWords + 8 * (Window::kCompletionCount - 1), 0);
    return std::nullopt;
  });
  EXPECT_EQ(post_something(), CUDA_SUCCESS);
  EXPECT_EQ(synchronize(in_context()), CUDA_SUCCESS);
}

TEST_F(SessionTest, AWaitDoesNotEndWithAMarkOfAnother) {
  if (!session().traits().shares_pages) GTEST_SKIP() << "no marks";
  puppet().on(Custom::kSignal, [this](const auto& command) -> std::optional<Answer> {
    const auto body = command.template as<wire::SignalBody>();
    std::atomic_ref(puppet().marks()[body.word])
        .store(body.sequence + 1, std::memory_order_release);
    return Answer{CUDA_ERROR_LAUNCH_FAILED, {}};
  });
  EXPECT_EQ(post_something(), CUDA_SUCCESS);
  EXPECT_EQ(synchronize(in_context()), CUDA_ERROR_LAUNCH_FAILED);
}

// ---- asynchronous errors ----

TEST_F(SessionTest, AnAsynchronousErrorIsReportedOnceByTheNextPost) {
  EXPECT_EQ(post_something(), CUDA_SUCCESS);
  puppet().set_error(CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(post_something(), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(post_something(), CUDA_SUCCESS);
  puppet().set_error(CUDA_ERROR_INVALID_VALUE);  // a new error with the same code
  EXPECT_EQ(session().take_error(), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(session().take_error(), CUDA_SUCCESS);
}

TEST_F(SessionTest, OneOfManyThreadsGetsAnErrorThatIsNotSticky) {
  puppet().set_error(CUDA_ERROR_INVALID_HANDLE);
  std::atomic<int> got{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] { got += session().take_error() == CUDA_ERROR_INVALID_HANDLE; });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(got.load(), 1);
}

TEST_F(SessionTest, AStickyErrorStaysUntilItsContextIsReset) {
  puppet().set_error(CUDA_ERROR_ILLEGAL_ADDRESS);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(post_something(), CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT_EQ(synchronize(in_context()), CUDA_ERROR_ILLEGAL_ADDRESS);
  }
  puppet().set_error(CUDA_SUCCESS);
  EXPECT_EQ(post_something(), CUDA_SUCCESS);
  EXPECT_FALSE(session().lost());
}

TEST_F(SessionTest, AWaitReportsTheWordsOwnResult) {
  puppet().on(Custom::kSignal, [](const auto&) {
    return test::PuppetServer::Answer{CUDA_ERROR_LAUNCH_FAILED, {}};
  });
  EXPECT_EQ(synchronize(in_context()), CUDA_ERROR_LAUNCH_FAILED);
}

TEST_F(SessionTest, ACallsResultIsTheWorkersAndNoAsynchronousOne) {
  puppet().set_error(CUDA_ERROR_INVALID_VALUE);
  puppet().on(Custom::kPing, [](const auto&) {
    return test::PuppetServer::Answer{CUDA_ERROR_NOT_READY, {}};
  });
  EXPECT_EQ(ping(), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(session().take_error(), CUDA_ERROR_INVALID_VALUE);
}

// ---- too large ----

TEST_F(SessionTest, ACommandThatIsTooLargeIsAnErrorOfItsOwnAndNoLoss) {
  constexpr auto kOpcode = Custom::kPing;
  const size_t room = wire::kMaxCommandBytes - sizeof(wire::CommandHeader);
  const std::vector<std::byte> tail(room + 1);
  for (const size_t body : {size_t{0}, size_t{8}, size_t{4096}}) {
    const auto rest = std::span(tail).subspan(body);
    Reply reply;
    EXPECT_EQ(session().post(in_context(), {kOpcode, std::span(tail).first(body), rest}),
              CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(session().call(in_context(), {kOpcode, std::span(tail).first(body), rest}, 0, &reply),
              CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(session().post(in_context(),
                             {kOpcode, std::span(tail).first(body), rest.first(room - body)}),
              CUDA_SUCCESS);
  }
  EXPECT_FALSE(session().lost());
  EXPECT_EQ(ping(), CUDA_SUCCESS);
}

// ---- loss ----

TEST_F(SessionTest, AWorkerThatGoesIsALossForEverybody) {
  std::promise<void> asked;
  puppet().on(Custom::kPing, [&](const auto&) {
    asked.set_value();
    puppet().link().close();
    return std::nullopt;
  });
  std::thread waiter([&] { EXPECT_EQ(ping(), kSessionLost); });
  asked.get_future().wait();
  waiter.join();
  expect_lost();
}

// ---- lies ----

TEST_F(SessionTest, AReplyThatIsLargerThanItsSlotEndsTheSession) {
  for (const uint32_t bytes : {Window::kSmallReplyBytes, 0xffff'fff8u}) {
    LoneSession lone;
    lone.puppet.on(Custom::kPing, [&](const auto& command) {
      const uint64_t stamp = wire::ReplyStamp::make(command.header.call, bytes);
      (void)lone.puppet.link().put(
          command.header.reply_slot + command.header.reply_bytes - sizeof stamp,
          std::as_bytes(std::span(&stamp, 1)), {}, transport::Wake::kYes);
      return std::nullopt;
    });
    EXPECT_EQ(lone.ping(), kSessionLost) << bytes;
    EXPECT_TRUE(lone.session->lost());
  }
}

TEST_F(SessionTest, AReplyWithoutAHeaderEndsTheSession) {
  puppet().on(Custom::kPing, [&](const auto& command) {
    write(command.header.reply_slot + command.header.reply_bytes - 8,
          wire::ReplyStamp::make(command.header.call, 4));
    return std::nullopt;
  });
  EXPECT_EQ(ping(), kSessionLost);
  expect_lost();
}

TEST_F(SessionTest, AReplyToAnotherCallIsNone) {
  std::atomic<int> pings{0};
  puppet().on(Custom::kPing, [&](const auto& command) {
    if (pings++ == 0) {
      write(command.header.reply_slot + command.header.reply_bytes - 8,
            wire::ReplyStamp::make(command.header.call + 1, 8));
    }
    return test::PuppetServer::Answer{CUDA_ERROR_NOT_READY, {}};
  });
  EXPECT_EQ(ping(), CUDA_ERROR_NOT_READY);
}

TEST_F(SessionTest, AnEventRingThatMakesNoSenseEndsTheSession) {
  // Larger than the ring's largest frame.
  write(Window::kEventRing + sizeof(wire::ReadyEvent) + 16, wire::frame_header(2, 0x7fff'ffff));
  while (!session().lost()) std::this_thread::yield();
  expect_lost();
}

TEST_F(SessionTest, ALateWordIsNotTakenForAnEarlyOne) {
  const Word first = session().words().acquire();
  session().words().release({first.index, first.sequence + 5});
  const Word second = session().words().acquire();
  ASSERT_EQ(second.index, first.index);
  EXPECT_EQ(second.sequence, first.sequence + 5);
  CUresult result = CUDA_ERROR_UNKNOWN;
  EXPECT_FALSE(session().word_reached({second.index, second.sequence + 1}, &result));
  write(Window::kCompletionWords + 8 * second.index,
        wire::CompletionWord::make(second.sequence + 1, CUDA_ERROR_NOT_READY));
  EXPECT_EQ(session().wait_word({second.index, second.sequence + 1}), CUDA_ERROR_NOT_READY);
  session().words().release({second.index, second.sequence + 1});
}

// ---- objects ----

TEST_F(SessionTest, AnObjectThatTheWorkerNamedIsMadeOnce) {
  const wire::ObjectId id = wire::kWorkerMinted | 7;
  const Identity identity{id, 1, &session(), 0};
  Object* first = named(wire::Kind::kGraphNode, identity);
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(named(wire::Kind::kGraphNode, identity), first);
  EXPECT_NE(named(wire::Kind::kGraph, identity), first);
  EXPECT_EQ(first->session, &session());
  forget_named(*first);
  destroy_object(first);
}

// ---- staging ----

TEST_F(SessionTest, LargeCopiesGoThroughEverySlotInOrder) {
  constexpr CUdeviceptr kDestination = 0x10'0000;
  constexpr size_t kBytes = 3 * test::PuppetServer::kStagingBytes + 12345;
  std::vector<std::byte> source(kBytes), arrived(kBytes);
  for (size_t i = 0; i < kBytes; ++i) source[i] = static_cast<std::byte>(i * 2654435761u >> 13);
  // Copies between slots and `arrived`, as the copy engine of a GPU would.
  puppet().on(Custom::kCopyStaged, [&](const auto& command) {
    const auto body = command.template as<wire::CopyStagedBody>();
    std::byte* slot = puppet().staging() + body.staging_offset;
    std::byte* device = arrived.data() + (body.device_address - kDestination);
    std::memcpy(body.to_device ? device : slot, body.to_device ? slot : device, body.bytes);
    return test::PuppetServer::Answer{};
  });
  ASSERT_EQ(session().staging().to_device(in_context(), kDestination, source.data(), kBytes),
            CUDA_SUCCESS);
  EXPECT_EQ(ping(), CUDA_SUCCESS);
  EXPECT_EQ(arrived, source);
  std::vector<std::byte> back(kBytes);
  ASSERT_EQ(session().staging().to_host(in_context(), back.data(), kDestination, kBytes),
            CUDA_SUCCESS);
  EXPECT_EQ(ping(), CUDA_SUCCESS);
  EXPECT_EQ(back, source);
}

TEST_F(SessionTest, AHugeStagingRegionLeavesWordsForOthers) {
  constexpr size_t kBytes = size_t{64} << 30;
  void* memory =
      ::mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  auto region = puppet().link().expose(memory, kBytes, -1, 0);
  ASSERT_TRUE(region);
  wire::ReadyEvent ready{};
  ready.staging_region = static_cast<uint64_t>(region->id);
  ready.staging_bytes = kBytes;
  auto staging = Staging::open(session(), ready);
  ASSERT_TRUE(staging) << staging.status().message();
  EXPECT_TRUE(session().words().acquire_spare());
  EXPECT_EQ(synchronize(in_context()), CUDA_SUCCESS);
  staging->reset();
  EXPECT_TRUE(puppet().link().unexpose(region->id).ok());
  ::munmap(memory, kBytes);
}

// The worker never reports that the slots of the stalled stream are free.
TEST_F(SessionTest, AStalledStreamDoesNotStopCopiesOfOthers) {
  constexpr wire::ObjectId kStalled = 7;
  constexpr size_t kSlots = test::PuppetServer::kStagingBytes / Staging::kSlotBytes;
  const auto timeline = std::make_shared<Timeline>(session(), 1, kStalled);
  const Route stalled{&session(), 1, 0, timeline.get()};
  puppet().on(Custom::kCopyStaged, [](const auto& command) {
    const bool is_stalled = command.template as<wire::CopyStagedBody>().stream == kStalled;
    return is_stalled ? std::nullopt : std::optional(test::PuppetServer::Answer{});
  });
  Staging& staging = session().staging();
  std::vector<Staging::Slot> slots;
  for (size_t i = 0; i + 1 < kSlots; ++i) {
    EXPECT_EQ(staging.has_room(), i <= kSlots / 2);
    slots.push_back(staging.acquire(stalled.timeline));
    staging.release(slots.back());  // its completion word has not arrived
  }
  std::vector<std::byte> memory(4 * test::PuppetServer::kStagingBytes);
  EXPECT_EQ(staging.to_device(in_context(), 0x1000, memory.data(), memory.size()), CUDA_SUCCESS);
  EXPECT_EQ(staging.to_host(in_context(), memory.data(), 0x1000, memory.size()), CUDA_SUCCESS);
  // Copies also continue while the stalled stream waits for one more slot.
  std::thread wants_more([&] { staging.release(staging.acquire(stalled.timeline)); });
  EXPECT_EQ(staging.to_device(in_context(), 0x1000, memory.data(), memory.size()), CUDA_SUCCESS);
  wire::SignalBody reached{};
  reached.word = slots.front().word.index;
  reached.sequence = slots.front().word.sequence;
  EXPECT_EQ(session().post(in_context(), reached), CUDA_SUCCESS);
  wants_more.join();
}

TEST_F(SessionTest, AStalledCopyToTheHostLeavesSlotsForOthers) {
  constexpr wire::ObjectId kStalled = 7;
  const auto timeline = std::make_shared<Timeline>(session(), 1, kStalled);
  const Route stalled{&session(), 1, 0, timeline.get()};
  std::mutex mutex;
  std::vector<wire::SignalBody> withheld;
  puppet().on(Custom::kCopyStaged, [&](const auto& command) {
    const auto body = command.template as<wire::CopyStagedBody>();
    if (body.stream != kStalled) return std::optional(test::PuppetServer::Answer{});
    std::lock_guard lock(mutex);
    wire::SignalBody word{};
    word.word = body.word;
    word.sequence = body.sequence;
    withheld.push_back(word);
    return std::optional<test::PuppetServer::Answer>();
  });
  std::vector<std::byte> there(4 * test::PuppetServer::kStagingBytes), memory(there.size());
  std::atomic<bool> over{false};
  std::thread copy([&] {
    EXPECT_EQ(session().staging().to_host(stalled, there.data(), 0x1000, there.size()),
              CUDA_SUCCESS);
    over = true;
  });
  const auto withheld_count = [&] {
    std::lock_guard lock(mutex);
    return withheld.size();
  };
  const size_t most = test::PuppetServer::kStagingBytes / Staging::kSlotBytes - 1;
  while (withheld_count() < std::min(most, 2 * copy_threads())) std::this_thread::yield();
  EXPECT_EQ(session().staging().to_device(in_context(), 0x1000, memory.data(), memory.size()),
            CUDA_SUCCESS);
  while (!over) {
    std::vector<wire::SignalBody> reached;
    {
      std::lock_guard lock(mutex);
      reached.swap(withheld);
    }
    for (const auto& body : reached) {
      EXPECT_EQ(session().post(in_context(), body), CUDA_SUCCESS);
    }
    std::this_thread::yield();
  }
  copy.join();
}

TEST_F(SessionTest, ACopyToTheHostReportsItsFailure) {
  puppet().on(Custom::kCopyStaged, [](const auto&) {
    return test::PuppetServer::Answer{CUDA_ERROR_ILLEGAL_ADDRESS, {}};
  });
  std::vector<std::byte> destination(8u << 20);
  EXPECT_EQ(
      session().staging().to_host(in_context(), destination.data(), 0x1000, destination.size()),
      CUDA_ERROR_ILLEGAL_ADDRESS);
}

// The whole copy is made. The error is reported by the next call that takes errors.
TEST_F(SessionTest, AnErrorOfAnEarlierCommandLeavesNoCopyHalfDone) {
  constexpr size_t kBytes = 2 * test::PuppetServer::kStagingBytes;
  std::vector<std::byte> memory(kBytes);
  const auto bytes_asked = [&] {
    EXPECT_EQ(ping(), CUDA_SUCCESS);
    size_t sum = 0;
    for (const auto& command : puppet().taken(Custom::kCopyStaged)) {
      sum += command.as<wire::CopyStagedBody>().bytes;
    }
    return sum;
  };
  puppet().set_error(CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(session().staging().to_device(in_context(), 0x1000, memory.data(), kBytes),
            CUDA_SUCCESS);
  EXPECT_EQ(bytes_asked(), kBytes);
  EXPECT_EQ(session().staging().to_host(in_context(), memory.data(), 0x1000, kBytes), CUDA_SUCCESS);
  EXPECT_EQ(bytes_asked(), kBytes);
  EXPECT_EQ(session().take_error(), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(SessionTest, ACopyEndsWhenTheWorkerGoes) {
  puppet().on(Custom::kCopyStaged, [&](const auto&) {
    puppet().link().close();
    return std::nullopt;
  });
  std::vector<std::byte> memory(32u << 20);
  EXPECT_EQ(session().staging().to_host(in_context(), memory.data(), 0x1000, memory.size()),
            kSessionLost);
  EXPECT_EQ(session().staging().to_device(in_context(), 0x1000, memory.data(), memory.size()),
            kSessionLost);
}

}  // namespace
}  // namespace rcuda::client
