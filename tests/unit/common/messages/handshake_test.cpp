#include "common/messages/handshake.h"

#include <cstring>
#include <random>
#include <thread>

#include <gtest/gtest.h>
#include <sys/socket.h>

#include "common/base/unique_fd.h"
#include "common/messages/message_codec.h"
#include "common/messages/message_io.h"
#include "common/messages/server_status.h"
#include "common/messages/work_codec.h"
#include "common/wire/protocol.h"
#include "tests/fuzz/handshake_target.h"

namespace rcuda::wire {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

Hello sample_hello() {
  Hello hello;
  hello.protocol_hash = 0x0123456789abcdefull;
  hello.commands = {0, 0xfedcba98, 3};
  hello.medium = "shm";
  hello.fallback = "tcp";
  hello.pid = 42;
  hello.uid = 1000;
  hello.host = "login1";
  hello.program = "./train";
  hello.user = "ada";
  for (int i = 0; i < 16; ++i) hello.session[i] = static_cast<uint8_t>(i);
  hello.devices = {3, 0};
  hello.worker = 2;
  hello.servers = 64;
  hello.devices_left = 65;
  hello.wait_ms = 60'000;
  hello.lease = "1a2b3c4d";
  hello.lease_proof[31] = 8;
  hello.taken = {{0x6000'0000'0000, 1ull << 40}, {0x6100'0000'0000, 1ull << 40}};
  return hello;
}

Welcome sample_welcome() {
  Welcome welcome;
  welcome.token[15] = 9;
  welcome.driver_version = 13000;
  welcome.worker_pid = 77;
  welcome.server = "node1";
  welcome.windows = {{0x6200'0000'0000, 1ull << 40}, {0x1100'0000'0000, 4096}};
  welcome.staging_bytes = 64 << 20;
  welcome.priority_greatest = -5;
  DeviceInfo device;
  device.name = "H200";
  device.pci_bus_id = "0000:17:00.0";
  device.total_bytes = 141ull << 30;
  device.ordinal = 0;
  device.attributes = {1, INT32_MIN, 1024};
  device.peer_attributes = {0, 1, 1, 0};
  welcome.devices = {device, device};
  welcome.lacking = {0x101, 0x203};
  welcome.fell_back = "no adapter";
  return welcome;
}

class SocketPair {
 public:
  SocketPair() {
    int fds[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    a.reset(fds[0]);
    b.reset(fds[1]);
  }
  UniqueFd a, b;
};

TEST(HandshakeTest, HelloSurvivesTheWire) {
  const Hello sent = sample_hello();
  Result<Hello> got = decode<Hello>(encode(sent));
  ASSERT_TRUE(got.ok()) << got.status().message();
  EXPECT_EQ(got->protocol_hash, sent.protocol_hash);
  EXPECT_EQ(got->commands, sent.commands);
  EXPECT_EQ(*protocol_hash_of_hello(encode(sent)), sent.protocol_hash);
  EXPECT_FALSE(protocol_hash_of_hello({}).ok());
  EXPECT_EQ(got->medium, sent.medium);
  EXPECT_EQ(got->fallback, sent.fallback);
  EXPECT_EQ(got->pid, sent.pid);
  EXPECT_EQ(got->uid, sent.uid);
  EXPECT_EQ(got->host, sent.host);
  EXPECT_EQ(got->program, sent.program);
  EXPECT_EQ(got->user, sent.user);
  EXPECT_EQ(std::memcmp(got->session, sent.session, 16), 0);
  EXPECT_EQ(got->devices, sent.devices);
  ASSERT_EQ(got->taken.size(), 2u);
  EXPECT_EQ(got->taken[1].base, sent.taken[1].base);
  EXPECT_EQ(got->taken[1].bytes, sent.taken[1].bytes);
  EXPECT_EQ(got->worker, sent.worker);
  EXPECT_EQ(got->servers, sent.servers);
  EXPECT_EQ(got->devices_left, sent.devices_left);
  EXPECT_EQ(got->wait_ms, sent.wait_ms);
  EXPECT_EQ(got->lease, sent.lease);
  EXPECT_EQ(std::memcmp(got->lease_proof, sent.lease_proof, 32), 0);
}

TEST(HandshakeTest, QueuedSurvivesTheWire) {
  const Queued sent{3, "user ada has 8 sessions"};
  const Result<Queued> got = decode<Queued>(encode(sent));
  ASSERT_TRUE(got.ok()) << got.status().message();
  EXPECT_EQ(got->place, sent.place);
  EXPECT_EQ(got->reason, sent.reason);
  EXPECT_EQ(decode<Queued>({}).status().code(), Code::kProtocol);
}

TEST(HandshakeTest, AMediumHasANameOfSomeLetters) {
  for (const std::string& name : {std::string(), std::string(kMaxMediumName + 1, 'm')}) {
    Hello hello = sample_hello();
    hello.medium = name;
    EXPECT_EQ(decode<Hello>(encode(hello)).status().code(), Code::kProtocol) << name;
    PeerHello peer;
    peer.medium = name;
    EXPECT_EQ(decode<PeerHello>(encode(peer)).status().code(), Code::kProtocol) << name;
  }
  Hello hello = sample_hello();
  hello.fallback = std::string(kMaxMediumName + 1, 'm');
  EXPECT_EQ(decode<Hello>(encode(hello)).status().code(), Code::kProtocol);
  hello.fallback = "";
  EXPECT_TRUE(decode<Hello>(encode(hello)).ok());
  PeerHello peer;
  peer.medium = std::string(kMaxMediumName, 'm');
  const Result<PeerHello> got = decode<PeerHello>(encode(peer));
  ASSERT_TRUE(got.ok()) << got.status().message();
  EXPECT_EQ(got->medium, peer.medium);
}

TEST(HandshakeTest, WelcomeSurvivesTheWire) {
  const Welcome sent = sample_welcome();
  Result<Welcome> got = decode<Welcome>(encode(sent));
  ASSERT_TRUE(got.ok()) << got.status().message();
  EXPECT_EQ(std::memcmp(got->token, sent.token, 16), 0);
  EXPECT_EQ(got->driver_version, sent.driver_version);
  EXPECT_EQ(got->worker_pid, sent.worker_pid);
  EXPECT_EQ(got->server, sent.server);
  ASSERT_EQ(got->windows.size(), 2u);
  EXPECT_EQ(got->windows[0].base, sent.windows[0].base);
  EXPECT_EQ(got->windows[1].bytes, 4096u);
  EXPECT_EQ(got->staging_bytes, sent.staging_bytes);
  EXPECT_EQ(got->priority_greatest, -5);
  ASSERT_EQ(got->devices.size(), 2u);
  EXPECT_EQ(got->devices[1].name, "H200");
  EXPECT_EQ(got->devices[1].pci_bus_id, "0000:17:00.0");
  EXPECT_EQ(got->devices[1].total_bytes, sent.devices[1].total_bytes);
  EXPECT_EQ(got->devices[1].attributes, sent.devices[1].attributes);
  EXPECT_EQ(got->devices[1].peer_attributes, sent.devices[1].peer_attributes);
  EXPECT_EQ(got->lacking, sent.lacking);
  EXPECT_EQ(got->fell_back, sent.fell_back);
}

TEST(HandshakeTest, AttachAndRefusalSurviveTheWire) {
  Attach attach;
  attach.token[3] = 200;
  attach.index = 2;
  Result<Attach> got = decode<Attach>(encode(attach));
  ASSERT_TRUE(got.ok());
  EXPECT_EQ(got->token[3], 200);
  EXPECT_EQ(got->index, 2u);

  Result<Refusal> refusal = decode<Refusal>(encode(Refusal{5, "no device 7: it has 0 and 1"}));
  ASSERT_TRUE(refusal.ok());
  EXPECT_EQ(refusal->code, 5u);
  EXPECT_EQ(refusal->reason, "no device 7: it has 0 and 1");
}

TEST(HandshakeTest, TicketsSurviveTheWire) {
  TicketQuery query;
  query.client.address[0] = 7;
  query.client.port = 51312;
  query.server.address[15] = 9;
  query.server.port = kDefaultPort;
  Result<TicketQuery> got = decode<TicketQuery>(encode(query));
  ASSERT_TRUE(got.ok());
  EXPECT_EQ(got->client, query.client);
  EXPECT_EQ(got->server, query.server);

  Ticket ticket;
  ticket.secret[0] = 1;
  ticket.secret[31] = 200;
  Result<Ticket> again = decode<Ticket>(encode(ticket));
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(std::memcmp(again->secret, ticket.secret, sizeof ticket.secret), 0);

  for (int difference : {-1, 1}) {
    std::vector<std::byte> body = encode(query);
    body.resize(body.size() + static_cast<size_t>(difference));
    EXPECT_EQ(decode<TicketQuery>(body).status().code(), Code::kProtocol);
    body = encode(ticket);
    body.resize(body.size() + static_cast<size_t>(difference));
    EXPECT_EQ(decode<Ticket>(body).status().code(), Code::kProtocol);
  }
}

ServerStatus sample_status() {
  ServerStatus status;
  status.server = "node1";
  status.driver = "CUDA 13.0";
  status.idle_workers = 2;
  status.max_sessions = 256;
  status.waiting = 4;
  status.devices = {{0, "H200", 141ull << 30}, {3, "H200", 141ull << 30, true}};
  ServerStatus::Session session;
  session.user = "ada";
  session.program = "./train";
  session.host = "login1";
  session.client_pid = 42;
  session.worker_pid = 77;
  session.medium = "verbs";
  session.seconds = 12;
  session.devices = {3};
  session.priority = 10;
  for (size_t i = 0; i < session.work.counts.size(); ++i) session.work.counts[i] = i + 1;
  status.sessions = {session, session};
  status.totals = {{0, 7}, 8, 9, 10, {{"ada", "verbs", 11, session.work}, {"bob", "tcp", 12}}};
  return status;
}

TEST(HandshakeTest, LongCertificatesSurviveTheWire) {
  Authenticate sent;
  sent.method = Method::kCertificate;
  sent.chain = {{std::string(identity::kMostChainBytes - 10, 'a')}, {std::string(10, 'b')}};
  const auto got = decode<Authenticate>(encode(sent));
  ASSERT_TRUE(got.ok()) << got.status().message();
  ASSERT_EQ(got->chain.size(), 2u);
  for (size_t i = 0; i < 2; ++i) EXPECT_EQ(got->chain[i].der, sent.chain[i].der);
}

TEST(HandshakeTest, StatusSurvivesTheWire) {
  Result<ServerStatus> got = decode<ServerStatus>(encode(sample_status()));
  ASSERT_TRUE(got.ok());
  EXPECT_EQ(got->server, "node1");
  EXPECT_EQ(got->idle_workers, 2u);
  EXPECT_EQ(got->waiting, 4u);
  ASSERT_EQ(got->devices.size(), 2u);
  EXPECT_EQ(got->devices[1].ordinal, 3u);
  EXPECT_EQ(got->devices[1].total_bytes, 141ull << 30);
  EXPECT_TRUE(got->devices[1].draining);
  ASSERT_EQ(got->sessions.size(), 2u);
  EXPECT_EQ(got->sessions[1].program, "./train");
  EXPECT_EQ(got->sessions[1].medium, "verbs");
  EXPECT_EQ(got->sessions[1].devices, std::vector<uint32_t>{3});
  EXPECT_EQ(got->sessions[1].priority, 10u);
  EXPECT_EQ(got->sessions[1].work.counts, sample_status().sessions[1].work.counts);
  EXPECT_EQ(got->totals.refused, (std::vector<uint64_t>{0, 7}));
  EXPECT_EQ(got->totals.worker_start_us, 10u);
  ASSERT_EQ(got->totals.users.size(), 2u);
  EXPECT_EQ(got->totals.users[0].user, "ada");
  EXPECT_EQ(got->totals.users[0].medium, "verbs");
  EXPECT_EQ(got->totals.users[0].sessions, 11u);
  EXPECT_EQ(got->totals.users[0].work.counts, sample_status().sessions[0].work.counts);
  EXPECT_EQ(got->totals.users[1].sessions, 12u);
}

// Sets a terminal's title, clears the screen, begins a second line, and writes from right to left.
constexpr const char* kHostileText = "\x1b]0;a\x07\u009b2J\nb\u202ec";
constexpr const char* kCleanText = "?]0;a???2J?b???c";

TEST(HandshakeTest, TextsOfAPeerDoNotControlATerminal) {
  ServerStatus status = sample_status();
  status.server = status.driver = status.devices[0].name = kHostileText;
  ServerStatus::Session& session = status.sessions[0];
  session.user = session.program = session.host = session.medium = session.job = kHostileText;
  status.totals.users[0].user = kHostileText;
  const Result<ServerStatus> shown = decode<ServerStatus>(encode(status));
  ASSERT_TRUE(shown.ok());
  const ServerStatus::Session& got = shown->sessions[0];
  for (const std::string& text :
       {shown->server, shown->driver, shown->devices[0].name, got.user, got.program, got.host,
        got.medium, got.job, shown->totals.users[0].user}) {
    EXPECT_EQ(text, kCleanText);
  }
  Hello hello = sample_hello();
  hello.program = hello.host = hello.user = kHostileText;
  const Result<Hello> greeted = decode<Hello>(encode(hello));
  ASSERT_TRUE(greeted.ok());
  EXPECT_EQ(greeted->program + greeted->host + greeted->user,
            std::string(kCleanText) + kCleanText + kCleanText);
  Welcome welcome = sample_welcome();
  welcome.server = welcome.fell_back = welcome.devices[0].name = kHostileText;
  const Result<Welcome> welcomed = decode<Welcome>(encode(welcome));
  ASSERT_TRUE(welcomed.ok());
  EXPECT_EQ(welcomed->server + welcomed->fell_back + welcomed->devices[0].name,
            std::string(kCleanText) + kCleanText + kCleanText);
  EXPECT_EQ(decode<Queued>(encode(Queued{1, kHostileText}))->reason, kCleanText);
  EXPECT_EQ(decode<Refusal>(encode(Refusal{1, kHostileText}))->reason, kCleanText);
}

TEST(HandshakeTest, AShortOrLongStatusIsRejected) {
  std::vector<std::byte> status = encode(sample_status());
  for (size_t n = 0; n < status.size(); ++n) {
    EXPECT_FALSE(decode<ServerStatus>({status.begin(), status.begin() + static_cast<long>(n)}).ok())
        << n;
  }
  status.push_back(std::byte{0});
  EXPECT_FALSE(decode<ServerStatus>(status).ok());
}

TEST(WorkTest, ASumStopsAtTheLargestNumber) {
  Work sum, more;
  sum[Counter::kCopies] = 5;
  more[Counter::kCopies] = 3;
  sum += more;
  EXPECT_EQ(sum[Counter::kCopies], 8u);
  more[Counter::kCopies] = ~uint64_t{0};
  sum += more;
  EXPECT_EQ(sum[Counter::kCopies], ~uint64_t{0});
}

TEST(WorkTest, CountersTravelByName) {
  // From a build that has one counter that this build lacks, and only two of this build's counters.
  std::vector<NamedCount> sent = {{"copies", 7}, {"of_another_build", 7}, {"launches", 7}};
  MessageWriter out;
  out.list("counters", sent, kMaxCounters);
  const std::vector<std::byte> body = out.take();
  MessageReader in(body);
  Work work;
  fields(in, work);
  EXPECT_TRUE(in.complete());
  Work expected;
  expected[Counter::kCopies] = expected[Counter::kLaunches] = 7;
  EXPECT_EQ(work.counts, expected.counts);
}

TEST(WorkTest, AWayOfPeerCopiesHasItsCounter) {
  EXPECT_STREQ(kWorkNames[static_cast<size_t>(peer_copies("tcp", "host"))], "peer_copies_tcp_host");
  EXPECT_STREQ(kWorkNames[static_cast<size_t>(peer_copies("ipc", "mapped"))],
               "peer_copies_ipc_mapped");
  EXPECT_EQ(peer_copies("shm", "host"), Counter::kPeerCopies);
  EXPECT_EQ(static_cast<size_t>(peer_copies("tcp", "registered")), kWorkNames.size() - 1);
}

TEST(WorkTest, CopiedBytesAreThoseOfAllDirections) {
  Work work;
  work.copied(Counter::kBytesToDevice, 1);
  work.copied(Counter::kBytesToHost, 10);
  work.copied(Counter::kBytesOnServer, 100);
  work.copied(Counter::kBytesToServer, 1000);
  work.copied(Counter::kBytesFromServer, 10000);
  EXPECT_EQ(work[Counter::kCopies], 5u);
  EXPECT_EQ(work.copied_bytes(), 11111u);
}

TEST(HandshakeTest, EveryTruncationIsRejected) {
  const std::vector<std::byte> hello = encode(sample_hello());
  for (size_t n = 0; n < hello.size(); ++n) {
    EXPECT_FALSE(decode<Hello>({hello.begin(), hello.begin() + static_cast<long>(n)}).ok()) << n;
  }
  const std::vector<std::byte> welcome = encode(sample_welcome());
  for (size_t n = 0; n < welcome.size(); ++n) {
    EXPECT_FALSE(decode<Welcome>({welcome.begin(), welcome.begin() + static_cast<long>(n)}).ok())
        << n;
  }
}

TEST(HandshakeTest, TrailingBytesAreRejected) {
  std::vector<std::byte> hello = encode(sample_hello());
  hello.push_back(std::byte{0});
  EXPECT_EQ(decode<Hello>(hello).status().code(), Code::kProtocol);
}

TEST(HandshakeTest, AHugeCountInAShortMessageAllocatesNothing) {
  std::vector<std::byte> attach(64, std::byte{0xff});
  EXPECT_FALSE(decode<Hello>(attach).ok());
  EXPECT_FALSE(decode<Welcome>(attach).ok());
}

TEST(HandshakeTest, MessagesCrossASocket) {
  SocketPair pair;
  const auto deadline = steady_clock::now() + std::chrono::seconds(20);
  const std::vector<std::byte> big(kMaxMessageBytes, std::byte{7});  // more than a socket buffers
  Status sent;
  std::thread sender(
      [&] { sent = write_message(pair.a.get(), MessageType::kWelcome, big, deadline); });
  auto got = read_message(pair.b.get(), deadline);
  sender.join();
  ASSERT_TRUE(sent.ok()) << sent.message();
  ASSERT_TRUE(got.ok()) << got.status().message();
  EXPECT_EQ(got->first, MessageType::kWelcome);
  EXPECT_EQ(got->second, big);
}

TEST(HandshakeTest, ASilentPeerTimesOut) {
  SocketPair pair;
  auto got = read_message(pair.b.get(), steady_clock::now() + milliseconds(20));
  EXPECT_EQ(got.status().code(), Code::kTimeout);
}

TEST(HandshakeTest, AClosedPeerIsUnavailable) {
  SocketPair pair;
  pair.a.reset();
  auto got = read_message(pair.b.get(), steady_clock::now() + std::chrono::seconds(20));
  EXPECT_EQ(got.status().code(), Code::kUnavailable);
}

TEST(HandshakeTest, AnotherVersionIsNamed) {
  SocketPair pair;
  MessageHeader header;
  header.version = kProtocolVersion + 7;
  header.type = MessageType::kHello;
  ASSERT_EQ(::send(pair.a.get(), &header, sizeof header, 0), static_cast<ssize_t>(sizeof header));
  auto got = read_message(pair.b.get(), steady_clock::now() + std::chrono::seconds(20));
  EXPECT_EQ(got.status().code(), Code::kProtocol);
  EXPECT_NE(got.status().context().find(std::to_string(kProtocolVersion + 7)), std::string::npos);
  EXPECT_NE(got.status().context().find("same release"), std::string::npos);
}

TEST(HandshakeTest, SomethingElseIsNotRcuda) {
  SocketPair pair;
  const char request[] = "GET / HTTP/1.1\r\nHost: node1\r\n\r\n";
  ASSERT_GT(::send(pair.a.get(), request, sizeof request - 1, 0), 0);
  auto got = read_message(pair.b.get(), steady_clock::now() + std::chrono::seconds(20));
  EXPECT_EQ(got.status().code(), Code::kProtocol);
}

TEST(HandshakeTest, AnOversizedBodyIsRefusedBeforeItIsRead) {
  SocketPair pair;
  MessageHeader header;
  header.version = kProtocolVersion;
  header.type = MessageType::kHello;
  header.body_bytes = kMaxMessageBytes + 1;
  ASSERT_GT(::send(pair.a.get(), &header, sizeof header, 0), 0);
  auto got = read_message(pair.b.get(), steady_clock::now() + std::chrono::seconds(20));
  EXPECT_EQ(got.status().code(), Code::kProtocol);
}

// The work of the libFuzzer target over fixed mutations, so that CI always runs it.
TEST(HandshakeTest, MutationsNeverCrashTheDecoders) {
  std::mt19937 random(20240613);
  const std::vector<std::vector<std::byte>> seeds = {
      encode(sample_hello()),
      encode(sample_welcome()),
      encode(Attach{}),
      encode(Refusal{1, "no"}),
      encode(sample_status()),
      encode(PeerHello{}),
      encode(ExportQuery{}),
      encode(TicketQuery{}),
      encode(Ticket{}),
      encode(Queued{3, "no"}),
      encode(LeaseRequest{LeaseOperation::kTake, "1a2b3c4d", "slurm 1", "ada", {0, 3}, 2}),
      encode(LeaseAnswer{"done", {}, {{"1a2b3c4d", "slurm 1", "ada", "root", {0, 3}}}})};
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::byte> bytes = seeds[static_cast<size_t>(round) % seeds.size()];
    const int changes = 1 + static_cast<int>(random() % 4);
    for (int i = 0; i < changes; ++i)
      bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    if (random() % 3 == 0) bytes.resize(random() % (bytes.size() + 1));
    fuzz_handshake(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  }
}

}  // namespace
}  // namespace rcuda::wire
