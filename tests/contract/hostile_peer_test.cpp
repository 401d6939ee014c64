// A peer that violates the protocol may end its own session and nothing else. These tests send raw
// bytes to a Link. They also pin the format of the bytes that shm and tcp send.
#include <array>
#include <bit>
#include <future>
#include <random>
#include <thread>
#include <tuple>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/log_forward.h"
#include "common/base/socket_io.h"
#include "common/transport/shm/medium.h"
#include "common/transport/tcp/medium.h"
#include "tests/contract/link_contract.h"

namespace rcuda::test {
namespace {

using transport::Bootstrap;
using transport::Link;
using transport::LinkOptions;

constexpr size_t kWindowBytes = 64u << 10;

class Words {
 public:
  Words& u32(uint32_t value) { return raw(value); }
  Words& u64(uint64_t value) { return raw(value); }
  Words& zeros(size_t count) {
    bytes_.resize(bytes_.size() + count);
    return *this;
  }
  std::vector<std::byte>& bytes() { return bytes_; }

 private:
  template <typename T>
  Words& raw(T value) {
    for (const std::byte b : std::bit_cast<std::array<std::byte, sizeof value>>(value)) {
      bytes_.push_back(b);
    }
    return *this;
  }
  std::vector<std::byte> bytes_;
};

// A Link, and the sockets on which the test sends to it: a greeting first, then any bytes.
struct Victim {
  UniqueFd attacker;
  std::vector<UniqueFd> streams;  // tcp: the attacker's ends
  int control = -1;               // tcp: the Link's own ends
  int stream = -1;
  std::unique_ptr<Link> link;
  Status refused;
};

Words tcp_hello(uint32_t peer_timeout_ms = 0) {
  return Words().u64(0x3370637461647563).u64(kWindowBytes).u32(peer_timeout_ms).u32(1);
}
Words shm_hello() {
  return Words().u64(0x326d687361647563).u64(kWindowBytes).u32(0).u32(1).u64(0).u64(0);
}

void send(const UniqueFd& socket, const std::vector<std::byte>& bytes) {
  // The victim may already have closed the connection.
  (void)send_all(socket.get(), bytes, soon());
}

// For tests of a peer that sends nothing. All other tests wait longer, in case the machine is busy.
constexpr auto kImpatience = std::chrono::milliseconds(300);

Victim attack_tcp(const std::vector<std::byte>& greeting,
                  std::chrono::milliseconds timeout = kPatience) {
  Result<RawPair> control = make_socket_pair(medium_named("tcp"));
  Result<RawPair> stream = make_socket_pair(medium_named("tcp"));
  EXPECT_TRUE(control.ok() && stream.ok());
  Victim victim;
  victim.attacker = std::move(control->ours);
  victim.streams.push_back(std::move(stream->ours));
  victim.control = control->theirs.get();
  victim.stream = stream->theirs.get();
  send(victim.attacker, greeting);
  send(victim.streams[0], Words().u64(0x336b6c6261647563).u64(0).bytes());
  Bootstrap bootstrap;
  bootstrap.control = std::move(control->theirs);
  bootstrap.server = true;
  bootstrap.timeout = timeout;
  bootstrap.accept_stream = [&](int) -> Result<Socket> {
    return Socket(std::move(stream->theirs));
  };
  const LinkOptions options{.window_bytes = kWindowBytes, .bulk_streams = 1};
  Result<std::unique_ptr<Link>> link = transport::tcp::make_link(std::move(bootstrap), options);
  if (link) {
    victim.link = std::move(*link);
  } else {
    victim.refused = link.status();
  }
  return victim;
}

Victim attack_shm(const std::vector<std::byte>& greeting, const std::vector<int>& fds,
                  std::chrono::milliseconds timeout = kPatience) {
  Result<RawPair> control = make_socket_pair(medium_named("shm"));
  EXPECT_TRUE(control.ok());
  Victim victim;
  victim.attacker = std::move(control->ours);
  if (!greeting.empty()) {
    EXPECT_TRUE(send_with_fds(victim.attacker.get(), greeting, fds, soon()).ok());
  }
  Bootstrap bootstrap;
  bootstrap.control = std::move(control->theirs);
  bootstrap.server = true;
  bootstrap.timeout = timeout;
  const LinkOptions options{.window_bytes = kWindowBytes, .peer_timeout = kPatience};
  Result<std::unique_ptr<Link>> link = transport::shm::make_link(std::move(bootstrap), options);
  if (link) {
    victim.link = std::move(*link);
  } else {
    victim.refused = link.status();
  }
  return victim;
}

UniqueFd window_file(size_t bytes, int seals) {
  UniqueFd file(::memfd_create("window", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(::ftruncate(file.get(), static_cast<off_t>(bytes)), 0);
  if (seals != 0) {
    EXPECT_EQ(::fcntl(file.get(), F_ADD_SEALS, seals), 0);
  }
  return file;
}

void expect_protocol_violation(Link& link) {
  EXPECT_EQ(link.wait([] { return false; }, soon()).code(), Code::kUnavailable);
  EXPECT_NE(link.status().context().find("protocol violation"), std::string::npos)
      << link.status().message();
}

TEST(HostileTcpPeer, GreetingsThatCannotBeAreRefused) {
  EXPECT_EQ(attack_tcp({}, kImpatience).refused.code(), Code::kTimeout);
  EXPECT_EQ(attack_tcp(Words().u64(1).u64(kWindowBytes).u32(0).u32(1).bytes()).refused.code(),
            Code::kProtocol);
  for (const uint64_t window : {uint64_t{0}, uint64_t{4097}, uint64_t{1} << 31, ~uint64_t{7}}) {
    const auto greeting = Words().u64(0x3370637461647563).u64(window).u32(0).u32(1).bytes();
    EXPECT_EQ(attack_tcp(greeting).refused.code(), Code::kInvalidArgument);
  }
}

TEST(HostileTcpPeer, PutsOutsideOfTheWindowEndTheSession) {
  const uint32_t window = kWindowBytes;
  const std::pair<uint32_t, uint32_t> puts[] = {{8, window},
                                                {16, window - 8},
                                                {0, 0},
                                                {12, 0},
                                                {window + 8, 0},
                                                {0xfffffff8, 0},
                                                {8, 0xfffffff8},
                                                {8, 0x80000000},
                                                {8, 5 /* the end of a write, too short */},
                                                {24, 5 /* and too long */},
                                                {16, 8 | 5},
                                                {8, 7 /* unknown kind */},
                                                {8, 8 | 6 /* a farewell with a place */},
                                                {16, 4 /* into a region, without bytes */},
                                                {17 + 65536, 4 /* and with too many */},
                                                {24, 8 | 4},
                                                {8, 2 /* a sign of life with content */}};
  for (const auto& [bytes, place] : puts) {
    Victim victim = attack_tcp(tcp_hello().bytes());
    ASSERT_NE(victim.link, nullptr) << victim.refused.message();
    send(victim.attacker, Words().u32(bytes).u32(place).zeros(64).bytes());
    expect_protocol_violation(*victim.link);
  }
}

TEST(HostileTcpPeer, PutsOutsideOfARegionEndTheSessionAndTouchNothing) {
  const std::pair<uint64_t, uint64_t> places[] = {
      {1, 4096}, {1, 4089}, {1, ~uint64_t{0}}, {1, ~uint64_t{7}}};
  for (const auto& [region, offset] : places) {
    std::vector<std::byte> memory(4096, std::byte{0x5a});
    Victim victim = attack_tcp(tcp_hello().bytes());
    ASSERT_NE(victim.link, nullptr);
    ASSERT_TRUE(victim.link->expose(memory.data(), memory.size()).ok());
    // The first request names a region that does not exist. That is allowed, because the peer may
    // not know yet that a region was withdrawn.
    send(victim.attacker, Words().u32(24).u32(4).u64(77).u64(0).u64(1).bytes());
    send(victim.attacker, Words().u32(24).u32(4).u64(region).u64(offset).u64(1).bytes());
    expect_protocol_violation(*victim.link);
    EXPECT_EQ(memory, std::vector<std::byte>(4096, std::byte{0x5a}));
  }
}

TEST(HostileTcpPeer, GoodBytesAreUnderstood) {
  Victim victim = attack_tcp(tcp_hello().bytes());
  ASSERT_NE(victim.link, nullptr);
  send(victim.attacker, Words().u32(8).u32(64 | 1).u64(0x1122334455667788).u32(0).u32(2).bytes());
  Link& link = *victim.link;
  EXPECT_TRUE(link.wait([&] { return load(link, 64) == 0x1122334455667788; }, soon()).ok());
  send(victim.attacker, Words().u32(0).u32(3).bytes());
  EXPECT_EQ(link.wait([] { return false; }, soon()).code(), Code::kUnavailable);
  EXPECT_EQ(link.status().context(), "the peer ended the session");
}

TEST(HostileTcpPeer, BulkMessagesThatCannotBeEndTheSession) {
  const auto message = [](uint32_t kind, uint64_t piece, uint64_t bytes) {
    return Words().u32(kind).u32(0).u64(piece).u64(1).u64(0).u64(bytes).zeros(64).bytes();
  };
  const std::vector<std::byte> messages[] = {message(0, 1, 0),
                                             message(9, 1, 8),
                                             message(3, 1, 8),
                                             message(4, 1, 0),
                                             message(1, 1, (4 << 20) + 1),
                                             message(2, 1, ~uint64_t{0})};
  for (const auto& bytes : messages) {
    Victim victim = attack_tcp(tcp_hello().bytes());
    ASSERT_NE(victim.link, nullptr);
    send(victim.streams[0], bytes);
    expect_protocol_violation(*victim.link);
  }
}

TEST(HostileTcpPeer, AnswersThatCannotBeEndTheSession) {
  const auto data = [](uint64_t piece) {
    return Words().u32(3).u32(0).u64(piece).u64(0).u64(0).u64(64).zeros(8 + 64).bytes();
  };
  const auto done = [](uint64_t piece, Code status = Code::kOk) {
    const auto code = static_cast<uint32_t>(status);
    return Words().u32(4).u32(code).u64(piece).u64(0).u64(0).u64(0).zeros(8).bytes();
  };
  constexpr uint64_t kRead = 1, kWrite = 2;
  const std::vector<std::vector<std::byte>> answers[] = {
      {done(kRead)},  // without its data
      {data(kRead), data(kRead)},
      {done(kRead, Code::kNotFound), data(kRead)},
      {data(kRead), done(kRead), done(kRead)},
      {data(kWrite)},
      {done(kWrite), done(kWrite)},
  };
  for (const auto& answer : answers) {
    std::vector<std::byte> memory(128);
    Victim victim = attack_tcp(tcp_hello().bytes());
    ASSERT_NE(victim.link, nullptr);
    Pending pending;
    victim.link->read(transport::RegionId{1}, 0, memory.data(), 64, pending.begin());
    victim.link->write(transport::RegionId{1}, 0, memory.data() + 64, 64, pending.begin());
    for (const auto& bytes : answer) send(victim.streams[0], bytes);
    expect_protocol_violation(*victim.link);
  }
}

TEST(HostileTcpPeer, TransfersOutsideOfARegionAreRefusedAndTouchNothing) {
  std::vector<std::byte> memory(4096, std::byte{0x5a});
  Victim victim = attack_tcp(tcp_hello().bytes());
  ASSERT_NE(victim.link, nullptr);
  const Result<transport::Region> region = victim.link->expose(memory.data(), memory.size());
  ASSERT_TRUE(region.ok());
  std::atomic<int> told{0};
  victim.link->on_immediate([&](uint32_t, uint64_t) { ++told; });
  const auto write = [](uint64_t offset, uint64_t bytes, uint64_t immediate) {
    Words words;
    words.u32(1).u32(0).u64(5).u64(1).u64(offset).u64(bytes).u64(immediate).zeros(bytes);
    return words.bytes();
  };
  const std::pair<uint64_t, uint64_t> places[] = {{4096, 64}, {4040, 64}, {~uint64_t{0} - 7, 64}};
  for (const auto& [offset, bytes] : places) {
    send(victim.streams[0], write(offset, bytes, 0));
    std::vector<std::byte> answer(48);
    ASSERT_TRUE(recv_all(victim.streams[0].get(), answer, soon()).ok());
    uint32_t words[2];
    std::memcpy(words, answer.data(), sizeof words);
    EXPECT_EQ(words[0], 4u);
    EXPECT_EQ(words[1], static_cast<uint32_t>(Code::kInvalidArgument));
  }
  EXPECT_TRUE(victim.link->status().ok());
  // A write with an immediate gets no answer, so an invalid one breaks the Link.
  send(victim.streams[0], write(4040, 64, 3));
  expect_protocol_violation(*victim.link);
  victim.link->on_immediate(nullptr);
  EXPECT_EQ(told, 0);
  EXPECT_EQ(memory, std::vector(4096, std::byte{0x5a}));
}

// A piece of a write in order: {kind, piece, region, offset, bytes, number}. The region need not
// exist.
std::vector<std::byte> piece_in_order(uint64_t region, uint64_t offset, uint64_t bytes,
                                      uint32_t number) {
  Words words;
  words.u32(5).u32(0).u64(1).u64(region).u64(offset).u64(bytes).u32(number).u32(0).zeros(bytes);
  return words.bytes();
}

TEST(HostileTcpPeer, TheEndOfAWriteHoldsBackWhatFollowsUntilTheWriteIsHere) {
  std::vector<std::byte> memory(4096, std::byte{0x5a});
  Victim victim = attack_tcp(tcp_hello().bytes());
  ASSERT_NE(victim.link, nullptr);
  ASSERT_TRUE(victim.link->expose(memory.data(), memory.size()).ok());
  Link& link = *victim.link;
  send(victim.attacker, Words().u32(16).u32(5).u64(96).u32(7).u32(0).bytes());
  send(victim.attacker, Words().u32(8).u32(64 | 1).u64(1).bytes());
  send(victim.streams[0], piece_in_order(1, 8, 64, 7));
  send(victim.streams[0], piece_in_order(1, 0, 64, 6));  // a piece of another write
  const auto later = std::chrono::steady_clock::now() + std::chrono::milliseconds(50);
  EXPECT_EQ(link.wait([&] { return load(link, 64) == 1; }, later).code(), Code::kTimeout);
  send(victim.streams[0], piece_in_order(77, 0, 32, 7));  // a region that is withdrawn
  EXPECT_TRUE(link.wait([&] { return load(link, 64) == 1; }, soon()).ok());
  EXPECT_EQ(memory[71], std::byte{0});
  EXPECT_EQ(memory[72], std::byte{0x5a});
  // The bytes of the next write never arrive.
  send(victim.attacker, Words().u32(16).u32(5).u64(8).u32(8).u32(0).bytes());
  victim.streams.clear();
  EXPECT_EQ(link.wait([] { return false; }, soon()).code(), Code::kUnavailable);
}

// A peer that ends the session because this process is stopped sends the reason after all earlier
// bytes.
TEST(HostileTcpPeer, ALastMessageCountsAfterAWriteThatNeverArrives) {
  const std::tuple<uint32_t, uint32_t, const char*> last[] = {{500, 6, "silent for 500ms"},
                                                              {0, 3, "the peer ended the session"}};
  for (const auto& [bytes, kind, reason] : last) {
    Victim victim = attack_tcp(tcp_hello().bytes());
    ASSERT_NE(victim.link, nullptr);
    Link& link = *victim.link;
    send(victim.attacker, Words().u32(16).u32(5).u64(8).u32(1).u32(0).bytes());
    send(victim.attacker, Words().u32(kWindowBytes).u32(1).zeros(kWindowBytes).bytes());
    send(victim.attacker, Words().u32(8).u32(64 | 1).u64(1).u32(bytes).u32(kind).bytes());
    victim.streams.clear();
    EXPECT_EQ(link.wait([] { return false; }, soon()).code(), Code::kUnavailable);
    EXPECT_NE(link.status().context().find(reason), std::string::npos) << link.status().message();
    EXPECT_EQ(load(link, 64), 0u) << "a put after the write counted without its bytes";
  }
}

// Requests that the peer has not answered do not delay a write in order, for which the peer's
// program waits.
TEST(HostileTcpPeer, AWriteInOrderOvertakesWhatThePeerDoesNotAnswer) {
  Victim victim = attack_tcp(tcp_hello().bytes());
  ASSERT_NE(victim.link, nullptr);
  std::vector<std::byte> memory(4096);
  constexpr int kReads = 40;  // more than may be unanswered
  Pending pending;
  for (int i = 0; i < kReads; ++i) {
    victim.link->read(transport::RegionId{1}, 0, memory.data(), 64, pending.begin());
  }
  victim.link->write_in_order(transport::RegionId{1}, 0, memory.data(), 64, pending.begin());
  uint32_t kind = 0;
  for (int i = 0; i < kReads && kind != 5; ++i) {
    std::vector<std::byte> header(48);
    ASSERT_TRUE(recv_all(victim.streams[0].get(), header, soon()).ok());
    std::memcpy(&kind, header.data(), sizeof kind);
  }
  EXPECT_EQ(kind, 5u);
  victim.link->close();
}

TEST(HostileTcpPeer, WritesInOrderThatCannotBeEndTheSession) {
  std::vector<std::byte> memory(4096, std::byte{0x5a});
  const auto attack = [&](const std::vector<std::byte>& bytes) {
    Victim victim = attack_tcp(tcp_hello().bytes());
    ASSERT_NE(victim.link, nullptr);
    ASSERT_TRUE(victim.link->expose(memory.data(), memory.size()).ok());
    send(victim.streams[0], bytes);
    expect_protocol_violation(*victim.link);
  };
  attack(piece_in_order(1, 4040, 64, 1));
  std::vector<std::byte> many;  // writes whose ends are not reported
  for (uint32_t number = 1; number <= 5000; ++number) {
    const std::vector<std::byte> piece = piece_in_order(77, 0, 8, number);
    many.insert(many.end(), piece.begin(), piece.end());
  }
  attack(many);
  EXPECT_EQ(memory, std::vector(4096, std::byte{0x5a}));
}

// Blocks the thread that writes a log line, as a stopped terminal does: until `descriptor` is
// closed, or for a second.
struct SlowLine {
  const int descriptor;
  std::promise<void> begun;
  bool closed = false;
};
SlowLine* slow_line = nullptr;

void write_slowly(LogLevel, const char*) {
  slow_line->begun.set_value();
  for (int i = 0; i < 100 && !slow_line->closed; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    slow_line->closed = ::fcntl(slow_line->descriptor, F_GETFD) < 0;
  }
}

TEST(HostileTcpPeer, NothingOfALinkGoesBeforeTheThreadThatBrokeIt) {
  Victim victim = attack_tcp(tcp_hello(1).bytes());
  ASSERT_NE(victim.link, nullptr);
  SlowLine line{.descriptor = victim.stream};
  slow_line = &line;
  forward_log(write_slowly);
  // Now no heartbeat can be sent. The thread that sends heartbeats notices this first.
  ::shutdown(victim.control, SHUT_WR);
  line.begun.get_future().wait();
  victim.streams.clear();  // ends all other threads
  victim.attacker.reset();
  victim.link.reset();
  forward_log(nullptr);
  EXPECT_FALSE(line.closed) << "the Link closed a stream while the thread that broke it still ran";
}

TEST(HostileTcpPeer, RandomStreamsNeverDoMoreThanEndTheSession) {
  std::mt19937_64 random(99);
  const int laps = rounds(200, false);
  for (int lap = 0; lap < laps; ++lap) {
    std::vector<std::byte> memory(4096);
    Victim victim = attack_tcp(tcp_hello().bytes());
    ASSERT_NE(victim.link, nullptr);
    (void)victim.link->expose(memory.data(), memory.size());
    for (int i = 0; i < 40; ++i) {
      if (random() % 4 == 0) {
        const uint32_t put = 17 + static_cast<uint32_t>(random() % 5000);
        send(victim.attacker,
             Words().u32(put).u32(4).u64(random() % 3).u64(random() % 64).zeros(put - 16).bytes());
      }
      // Mostly plausible values, sometimes random ones.
      const auto small = [&](uint64_t limit) {
        return random() % 16 == 0 ? random() : random() % limit / 8 * 8;
      };
      const auto bytes = static_cast<uint32_t>(small(4096));
      send(victim.attacker, Words()
                                .u32(bytes)
                                .u32(static_cast<uint32_t>(small(kWindowBytes) | random() % 3))
                                .zeros(bytes % 8192)
                                .bytes());
      if (random() % 8 == 0) {
        send(victim.attacker, Words().u32(16).u32(5).u64(small(5000)).u64(random() % 3).bytes());
      }
      const uint64_t piece = small(5000);
      send(victim.streams[0], Words()
                                  .u32(static_cast<uint32_t>(1 + random() % 5))
                                  .u32(static_cast<uint32_t>(small(8)))
                                  .u64(small(64))
                                  .u64(random() % 3)
                                  .u64(small(4096))
                                  .u64(piece)
                                  .u64(random() % 3)
                                  .zeros(piece % 8192)
                                  .bytes());
    }
    victim.streams.clear();
    victim.attacker.reset();
    EXPECT_EQ(victim.link->wait([] { return false; }, soon()).code(), Code::kUnavailable);
  }
}

TEST(HostileShmPeer, GreetingsThatCannotBeAreRefused) {
  const int sealed = F_SEAL_SHRINK | F_SEAL_GROW;
  const UniqueFd good = window_file(4096 + kWindowBytes, sealed);
  const UniqueFd small = window_file(4096, sealed);
  const UniqueFd unsealed = window_file(4096 + kWindowBytes, 0);
  const UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  EXPECT_EQ(attack_shm({}, {}, kImpatience).refused.code(), Code::kTimeout);
  EXPECT_EQ(attack_shm(shm_hello().bytes(), {}).refused.code(), Code::kProtocol);
  EXPECT_EQ(attack_shm(Words().u64(5).zeros(32).bytes(), {good.get()}).refused.code(),
            Code::kProtocol);
  for (const UniqueFd* file : {&small, &unsealed, &null}) {
    EXPECT_EQ(attack_shm(shm_hello().bytes(), {file->get()}).refused.code(), Code::kProtocol);
  }
  EXPECT_NE(attack_shm(shm_hello().bytes(), {good.get()}).link, nullptr);
}

TEST(HostileShmPeer, AnnouncementsThatCannotBeEndTheSession) {
  const int sealed = F_SEAL_SHRINK | F_SEAL_GROW;
  const UniqueFd window = window_file(4096 + kWindowBytes, sealed);
  const UniqueFd block = window_file(8192, sealed);
  const UniqueFd unsealed = window_file(8192, 0);
  struct Announcement {
    uint32_t kind;
    uint32_t has_fd;
    uint64_t region;
    uint64_t bytes;
    uint64_t offset;
    int fd;
  };
  const Announcement announcements[] = {
      {2, 1, 1, 8193, 0, block.get()},
      {2, 1, 1, 8192, 4096, block.get()},
      {2, 1, 1, ~uint64_t{0}, 8, block.get()},
      {2, 1, 1, 4096, ~uint64_t{4095}, block.get()},
      {2, 1, 1, 4096, 0, unsealed.get()},
      {2, 1, 0, 4096, 0, block.get()},
      {2, 0, 1, 0, 0, -1},
      {2, 1, 1, 4096, 0, -1},
      {2, 0, 1, 4096, 0, block.get()},
      {3, 0, 1, 0, 0, -1},
      {77, 0, 1, 0, 0, -1},
  };
  for (const Announcement& a : announcements) {
    Victim victim = attack_shm(shm_hello().bytes(), {window.get()});
    ASSERT_NE(victim.link, nullptr) << victim.refused.message();
    const auto message =
        Words().u32(a.kind).u32(a.has_fd).u64(a.region).u64(a.bytes).u64(a.offset).u64(0);
    const std::vector<int> fds(a.fd >= 0 ? 1 : 0, a.fd);
    ASSERT_TRUE(send_with_fds(victim.attacker.get(), Words(message).bytes(), fds, soon()).ok());
    expect_protocol_violation(*victim.link);
  }
}

// This process lacks descriptors; the peer has done nothing wrong. So the Link and its other
// regions stay usable.
TEST(HostileShmPeer, ADescriptorForWhichThereIsNoRoomIsMissingFromItsRegionOnly) {
  const UniqueFd window = window_file(4096 + kWindowBytes, F_SEAL_SHRINK | F_SEAL_GROW);
  const UniqueFd block = window_file(8192, F_SEAL_SHRINK | F_SEAL_GROW);
  Victim victim = attack_shm(shm_hello().bytes(), {window.get()});
  ASSERT_NE(victim.link, nullptr) << victim.refused.message();
  const auto announce = [&](uint64_t region) {
    const int fd = block.get();
    const auto message = Words().u32(2).u32(1).u64(region).u64(8192).u64(0).u64(0);
    EXPECT_TRUE(
        send_with_fds(victim.attacker.get(), Words(message).bytes(), {&fd, 1}, soon()).ok());
  };
  const auto map = [&](uint64_t region) {
    return victim.link->map(transport::RegionId{region}, 8192).status();
  };
  {
    const DescriptorLimit limit;
    announce(1);
    EXPECT_EQ(map(1).code(), Code::kSystem);
  }
  EXPECT_NE(map(1).context().find("ulimit -n"), std::string::npos) << map(1).message();
  announce(2);
  EXPECT_TRUE(map(2).ok()) << map(2).message();
  EXPECT_TRUE(victim.link->status().ok()) << victim.link->status().message();
}

TEST(HostileShmPeer, RandomControlMessagesNeverDoMoreThanEndTheSession) {
  const UniqueFd window = window_file(4096 + kWindowBytes, F_SEAL_SHRINK | F_SEAL_GROW);
  const UniqueFd block = window_file(8192, F_SEAL_SHRINK | F_SEAL_GROW);
  std::mt19937_64 random(4);
  const int laps = rounds(200, false);
  for (int lap = 0; lap < laps; ++lap) {
    Victim victim = attack_shm(shm_hello().bytes(), {window.get()});
    ASSERT_NE(victim.link, nullptr);
    uint64_t next = 1;
    for (int i = 0; i < 30; ++i) {
      const bool with_fd = random() % 2 == 0;
      const bool retire = random() % 4 == 0;
      const bool odd = random() % 20 == 0;
      Words message = Words()
                          .u32(retire ? 3 : 2)
                          .u32(odd ? 1 : with_fd && !retire)
                          .u64(retire ? random() % (next + 1) : next++)
                          .u64(odd ? random() : 1 + random() % 8192)
                          .u64(odd ? random() : 0)
                          .u64(random());
      const std::vector<int> fds(with_fd && !retire ? 1 : 0, block.get());
      (void)send_with_fds(victim.attacker.get(), message.bytes(), fds, soon());
      // Mapping races with the announcements.
      const size_t bytes = 1 + random() % 8192;
      const Result<void*> mapped =
          victim.link->map(transport::RegionId{random() % next}, i % 2 == 0 ? 8192 : bytes);
      if (mapped && *mapped != nullptr) {
        static_cast<volatile char*>(*mapped)[i % 2 == 0 ? 8191 : bytes - 1] = 1;
      }
      if (!victim.link->status().ok()) break;
    }
    victim.attacker.reset();
    EXPECT_EQ(victim.link->wait([] { return false; }, soon()).code(), Code::kUnavailable);
  }
}

}  // namespace
}  // namespace rcuda::test
