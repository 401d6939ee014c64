// The daemon: the real binary, on softgpu, reached over its sockets.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <dirent.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "api/opcodes.h"
#include "common/base/unique_fd.h"
#include "common/messages/handshake.h"
#include "common/messages/message_io.h"
#include "common/messages/server_status.h"
#include "common/reach/connect.h"
#include "common/reach/socket_keys.h"
#include "common/transport/link.h"
#include "common/wire/address_window.h"
#include "common/wire/protocol.h"
#include "server/addresses/address_window.h"
#include "server/identity/accounts.h"
#include "tests/support/server_process.h"
#include "tests/support/session_harness.h"

namespace rcuda::server {
namespace {

using Clock = std::chrono::steady_clock;
using test::hello;
using test::patience;
using test::ProtocolClient;
using test::read_answer;
using Server = test::ServerProcess;

bool eventually(const std::function<bool()>& condition) {
  for (const Clock::time_point end = patience(); Clock::now() < end;) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

std::set<pid_t> workers_of(pid_t parent) {
  std::set<pid_t> workers;
  std::ifstream file("/proc/" + std::to_string(parent) + "/task/" + std::to_string(parent) +
                     "/children");
  pid_t pid;
  while (file >> pid) {
    std::ifstream command("/proc/" + std::to_string(pid) + "/cmdline");
    std::string name;
    if (std::getline(command, name, '\0') && name == "rcuda-worker") workers.insert(pid);
  }
  return workers;
}

size_t descriptors_of(pid_t pid) {
  size_t count = 0;
  DIR* folder = ::opendir(("/proc/" + std::to_string(pid) + "/fd").c_str());
  while (folder && ::readdir(folder)) ++count;
  if (folder) ::closedir(folder);
  return count;
}

struct Session {
  wire::Welcome welcome;
  std::unique_ptr<transport::Link> link;
  std::unique_ptr<ProtocolClient> client;
};

struct Outcome {
  std::unique_ptr<Session> session;
  std::string refusal;
};

// Introduces a client. `meanwhile` runs when the worker has welcomed the client, before the client
// makes its Link.
Outcome introduce(const Server& server, const wire::Hello& message,
                  const std::function<void()>& meanwhile = {}) {
  const bool local = message.medium == "shm";
  UniqueFd socket = local ? server.connect_local() : server.connect_tcp();
  EXPECT_TRUE(wire::present_ticket(socket.get(), {}, patience()).ok());
  EXPECT_TRUE(wire::write_message(socket.get(), wire::MessageType::kHello, wire::encode(message),
                                  patience())
                  .ok());
  auto answer = read_answer(socket.get());
  Outcome outcome;
  if (!answer.ok()) {
    outcome.refusal = answer.status().message();
    return outcome;
  }
  if (answer->first == wire::MessageType::kRefusal) {
    outcome.refusal = wire::decode<wire::Refusal>(answer->second)->reason;
    return outcome;
  }
  auto session = std::make_unique<Session>();
  session->welcome = *wire::decode<wire::Welcome>(answer->second);
  if (meanwhile) meanwhile();
  transport::LinkOptions options;
  options.window_bytes = wire::ClientWindow::kBytes;
  constexpr std::chrono::seconds kPatience(60);
  auto link = wire::link_to_worker({std::move(socket), transport::find_medium(message.medium)},
                                   session->welcome.token, options, {kPatience, kPatience});
  if (!link.ok()) {
    outcome.refusal = link.status().message();
    return outcome;
  }
  session->link = std::move(link).value();
  session->client = std::make_unique<ProtocolClient>(*session->link);
  EXPECT_EQ(session->client->next_event().size(), sizeof(wire::ReadyEvent));
  outcome.session = std::move(session);
  return outcome;
}

bool answers(Session& session) {
  return session.client->call(static_cast<uint16_t>(wire::Custom::kPing), {}).has_value();
}

TEST(DaemonTest, SessionsRunOverEveryMedium) {
  Server server;
  ASSERT_NE(server.port(), 0);
  for (const char* medium : {"shm", "tcp"}) {
    Outcome outcome = introduce(server, hello(medium));
    ASSERT_TRUE(outcome.session) << outcome.refusal;
    EXPECT_TRUE(answers(*outcome.session));
    EXPECT_EQ(outcome.session->welcome.devices.size(), 1u);
    EXPECT_EQ(outcome.session->welcome.windows.size(), 2u);
    // Commands reach the device: memory is allocated in the window.
    wire::Encoder body;
    body.value(size_t{4096});
    auto answer = outcome.session->client->call(static_cast<uint16_t>(api::Opcode::cuMemAlloc_v2),
                                                body.body());
    ASSERT_TRUE(answer && answer->result == CUDA_SUCCESS);
    CUdeviceptr address = 0;
    std::memcpy(&address, answer->body.data(), sizeof address);
    EXPECT_TRUE(wire::contains(outcome.session->welcome.windows, address));
  }
}

// A client may introduce this worker to another worker before this worker's session runs. Then the
// other worker connects early.
TEST(DaemonTest, AnotherWorkerMayCallEarly) {
  Server server;
  constexpr uint32_t kLink = 3;
  wire::Hello message = hello("shm");
  message.worker = 1;
  wire::PeerHello caller;
  wire::session_name(message.session, caller.session);
  caller.worker = message.worker;
  caller.link = kLink;
  caller.medium = "shm";
  const UniqueFd socket = server.connect_local();
  Outcome outcome = introduce(server, message, [&] {
    EXPECT_TRUE(wire::write_message(socket.get(), wire::MessageType::kPeerHello,
                                    wire::encode(caller), patience())
                    .ok());
    // Time for the other worker's connection to arrive first. A later connection is accepted
    // anyway.
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  });
  ASSERT_TRUE(outcome.session) << outcome.refusal;
  wire::PeerIntroduceBody introduction{};
  introduction.link = kLink;
  ASSERT_TRUE(outcome.session->client->post(wire::Custom::kPeerIntroduce, introduction).ok());
  const auto answer = wire::read_message(socket.get(), patience());
  ASSERT_TRUE(answer.ok()) << answer.status().message();
  EXPECT_EQ(answer->first, wire::MessageType::kPeerWelcome);
}

TEST(DaemonTest, AClientThatWaitsForAWorkerHearsOfIt) {
  Server server({"--pool", "0"});
  UniqueFd socket = server.connect_local();
  ASSERT_TRUE(wire::write_message(socket.get(), wire::MessageType::kHello,
                                  wire::encode(hello("shm")), patience())
                  .ok());
  auto message = wire::read_message(socket.get(), patience());
  ASSERT_TRUE(message.ok()) << message.status().message();
  EXPECT_EQ(message->first, wire::MessageType::kQueued);
  auto answer = read_answer(socket.get());
  ASSERT_TRUE(answer.ok()) << answer.status().message();
  EXPECT_EQ(answer->first, wire::MessageType::kWelcome);
}

TEST(DaemonTest, ARefusalNamesTheMend) {
  Server server({"--devices", "1"});
  ASSERT_NE(server.port(), 0);
  wire::Hello message = hello("shm");
  EXPECT_NE(introduce(server, message).refusal.find("it offers 1"), std::string::npos);
  message.devices = {1};
  EXPECT_TRUE(introduce(server, message).session);
  message.devices = {1, 1};
  EXPECT_NE(introduce(server, message).refusal.find("twice"), std::string::npos);
  message.devices = {};
  EXPECT_NE(introduce(server, message).refusal.find("no device"), std::string::npos);
  message.devices = {1};
  message.protocol_hash ^= 1;
  EXPECT_NE(introduce(server, message).refusal.find("same build"), std::string::npos);
  message = hello("verbs");
  message.devices = {1};
  EXPECT_NE(introduce(server, message).refusal.find("RCUDA_TRANSPORT"), std::string::npos);
}

TEST(DaemonTest, AWorkerHasAddressesThatTheClientDoesNotUse) {
  Server server;
  wire::Hello message = hello("shm");
  message.servers = 6;
  std::vector<Outcome> outcomes;
  std::set<uint64_t> windows;
  for (uint32_t i = 0; i < message.servers; ++i) {
    message.worker = i;
    outcomes.push_back(introduce(server, message));
    ASSERT_TRUE(outcomes.back().session) << outcomes.back().refusal;
    const std::vector<wire::AddressWindow> own = outcomes.back().session->welcome.windows;
    for (const wire::AddressWindow& window : own) {
      EXPECT_FALSE(is_taken(message, window));
      windows.insert(window.base);
    }
    message.taken.insert(message.taken.end(), own.begin(), own.end());
  }
  EXPECT_EQ(windows.size(), 12u);
  message.taken = {{0, uint64_t{1} << 63}};
  EXPECT_NE(introduce(server, message).refusal.find("name fewer servers"), std::string::npos);
}

TEST(DaemonTest, BadPeersAreDroppedAndOthersServed) {
  Server server({}, {"RCUDA_SERVER_HANDSHAKE_TIMEOUT=300ms"});
  ASSERT_NE(server.port(), 0);
  UniqueFd silent = server.connect_tcp();
  UniqueFd web = server.connect_tcp();
  const char request[] = "GET / HTTP/1.0\r\n\r\n";
  ASSERT_GT(::send(web.get(), request, sizeof request - 1, 0), 0);
  UniqueFd liar = server.connect_tcp();
  wire::MessageHeader header;
  header.version = wire::kProtocolVersion;
  header.type = wire::MessageType::kHello;
  header.body_bytes = wire::kMaxMessageBytes;
  ASSERT_GT(::send(liar.get(), &header, sizeof header, 0), 0);
  UniqueFd stranger = server.connect_tcp();
  wire::Attach attach;
  attach.token[0] = 1;
  ASSERT_TRUE(wire::write_message(stranger.get(), wire::MessageType::kAttach, wire::encode(attach),
                                  patience())
                  .ok());
  server.connect_tcp();  // and disconnects again

  Outcome outcome = introduce(server, hello("tcp"));
  ASSERT_TRUE(outcome.session) << outcome.refusal;
  EXPECT_TRUE(answers(*outcome.session));
  for (const UniqueFd* peer : {&silent, &web, &liar, &stranger}) {
    EXPECT_TRUE(eventually([&] {
      char byte[512];
      const ssize_t got = ::recv(peer->get(), byte, sizeof byte, MSG_DONTWAIT);
      return got == 0 || (got < 0 && errno == ECONNRESET);
    }));
  }
}

// An attacker who has seen the session's messages on the network sends an Attach again.
TEST(DaemonTest, AnAttachServesOnce) {
  const Server server;
  Outcome outcome = introduce(server, hello("tcp"));
  ASSERT_TRUE(outcome.session) << outcome.refusal;
  const auto& token = outcome.session->welcome.token;
  wire::Attach bare, again, beyond;
  std::ranges::copy(token, bare.token);
  std::ranges::copy(wire::attach_name(token), again.session);
  std::ranges::copy(wire::attach_token(token, 0, 0), again.token);
  beyond.index = wire::kMostSockets;
  std::ranges::copy(wire::attach_name(token), beyond.session);
  std::ranges::copy(wire::attach_token(token, beyond.index, 0), beyond.token);
  const auto is_closed = [&](const UniqueFd& socket) {
    char byte;
    return ::recv(socket.get(), &byte, 1, MSG_DONTWAIT) == 0;
  };
  const auto attach = [&](const wire::Attach& message) {
    UniqueFd socket = server.connect_tcp();
    EXPECT_TRUE(wire::write_message(socket.get(), wire::MessageType::kAttach, wire::encode(message),
                                    patience())
                    .ok());
    return socket;
  };
  for (const wire::Attach& message : {bare, again, beyond}) {
    const UniqueFd socket = attach(message);
    EXPECT_TRUE(eventually([&] { return is_closed(socket); }));
  }
  EXPECT_TRUE(answers(*outcome.session));
  // An Attach for a socket that the session has not opened. A second such socket does not replace
  // the first.
  wire::Attach unused;
  unused.index = wire::kMostSockets - 1;
  std::ranges::copy(wire::attach_name(token), unused.session);
  std::ranges::copy(wire::attach_token(token, unused.index, 0), unused.token);
  const UniqueFd first = attach(unused), second = attach(unused);
  EXPECT_TRUE(eventually([&] { return is_closed(second) || is_closed(first); }));
  EXPECT_FALSE(is_closed(first));
}

TEST(DaemonTest, TheServerMayOpenAllFilesThatTheHardLimitAllows) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit low = before;
  low.rlim_cur = 128;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
  const Server server;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  std::set<pid_t> processes = workers_of(server.pid());
  ASSERT_FALSE(processes.empty());
  processes.insert(server.pid());
  for (const pid_t process : processes) {
    rlimit limit{};
    ASSERT_EQ(::prlimit(process, RLIMIT_NOFILE, nullptr, &limit), 0);
    EXPECT_EQ(limit.rlim_cur, before.rlim_max) << process;
  }
}

TEST(DaemonTest, AKilledWorkerConcernsItsClientOnly) {
  Server server;
  Outcome first = introduce(server, hello("shm"));
  Outcome second = introduce(server, hello("tcp"));
  ASSERT_TRUE(first.session && second.session);
  ASSERT_EQ(::kill(static_cast<pid_t>(first.session->welcome.worker_pid), SIGKILL), 0);
  EXPECT_FALSE(answers(*first.session));
  EXPECT_TRUE(answers(*second.session));
  Outcome third = introduce(server, hello("shm"));
  ASSERT_TRUE(third.session) << third.refusal;
  EXPECT_TRUE(answers(*third.session));
}

TEST(DaemonTest, AWorkerThatReadsNothingDoesNotHoldTheDaemon) {
  Server server;
  Outcome outcome = introduce(server, hello("shm"));
  ASSERT_TRUE(outcome.session);
  const auto worker = static_cast<pid_t>(outcome.session->welcome.worker_pid);
  ASSERT_EQ(::kill(worker, SIGSTOP), 0);
  // More connections than the worker's socket can buffer.
  wire::PeerHello caller;
  wire::session_name(hello("shm").session, caller.session);
  for (int i = 0; i < 1000; ++i) {
    ASSERT_TRUE(wire::write_message(server.connect_tcp().get(), wire::MessageType::kPeerHello,
                                    wire::encode(caller), patience())
                    .ok());
  }
  UniqueFd socket = server.connect_tcp();
  ASSERT_TRUE(wire::present_ticket(socket.get(), {}, patience()).ok());
  ASSERT_TRUE(
      wire::write_message(socket.get(), wire::MessageType::kStatusQuery, {}, patience()).ok());
  EXPECT_TRUE(wire::read_message(socket.get(), patience()).ok());
  ::kill(worker, SIGKILL);
}

TEST(DaemonTest, NothingIsLeftOfSessions) {
  Server server({"--pool", "2"});
  ASSERT_NE(server.port(), 0);
  ASSERT_TRUE(eventually([&] { return workers_of(server.pid()).size() == 2; }));
  const size_t descriptors = descriptors_of(server.pid());
  {
    std::vector<Outcome> outcomes;
    for (int i = 0; i < 12; ++i) {
      outcomes.push_back(introduce(server, hello(i % 2 ? "tcp" : "shm")));
      ASSERT_TRUE(outcomes.back().session) << outcomes.back().refusal;
    }
    for (Outcome& outcome : outcomes) EXPECT_TRUE(answers(*outcome.session));
    // Some sessions end properly, some disconnect, some lose their worker.
    for (size_t i = 0; i < outcomes.size(); i += 3) {
      (void)outcomes[i].session->client->post(static_cast<uint16_t>(wire::Custom::kSessionEnd), {});
      ::kill(static_cast<pid_t>(outcomes[i + 1].session->welcome.worker_pid), SIGKILL);
    }
  }
  EXPECT_TRUE(eventually([&] { return workers_of(server.pid()).size() == 2; }));
  EXPECT_TRUE(eventually([&] { return descriptors_of(server.pid()) == descriptors; }))
      << descriptors_of(server.pid()) << " descriptors, " << descriptors << " at the start";
}

TEST(DaemonTest, SixtyFourClientsAtOnce) {
  Server server;
  ASSERT_NE(server.port(), 0);
  std::vector<Outcome> outcomes(64);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < outcomes.size(); ++i) {
    threads.emplace_back([&, i] { outcomes[i] = introduce(server, hello(i % 2 ? "tcp" : "shm")); });
  }
  for (std::thread& thread : threads) thread.join();
  std::set<uint32_t> workers;
  for (Outcome& outcome : outcomes) {
    ASSERT_TRUE(outcome.session) << outcome.refusal;
    EXPECT_TRUE(answers(*outcome.session));
    workers.insert(outcome.session->welcome.worker_pid);
  }
  EXPECT_EQ(workers.size(), outcomes.size());
}

TEST(DaemonTest, StatusListsDevicesAndSessions) {
  Server server({"--devices", "1,0"});
  wire::Hello message = hello("shm");
  message.user = "ada";
  Outcome outcome = introduce(server, message);
  ASSERT_TRUE(outcome.session);
  UniqueFd socket = server.connect_tcp();
  ASSERT_TRUE(wire::present_ticket(socket.get(), {}, patience()).ok());
  ASSERT_TRUE(
      wire::write_message(socket.get(), wire::MessageType::kStatusQuery, {}, patience()).ok());
  auto answer = wire::read_message(socket.get(), patience());
  ASSERT_TRUE(answer.ok());
  ASSERT_EQ(answer->first, wire::MessageType::kStatus);
  Result<wire::ServerStatus> status = wire::decode<wire::ServerStatus>(answer->second);
  ASSERT_TRUE(status.ok());
  ASSERT_EQ(status->devices.size(), 2u);
  EXPECT_EQ(status->devices[0].ordinal, 1u);
  EXPECT_GT(status->devices[0].total_bytes, 0u);
  ASSERT_EQ(status->sessions.size(), 1u);
  // The verified user, not the name that the client sent.
  EXPECT_EQ(status->sessions[0].user, look_up_account(::geteuid())->user);
  EXPECT_EQ(status->sessions[0].worker_pid, outcome.session->welcome.worker_pid);
  EXPECT_EQ(status->sessions[0].devices, std::vector<uint32_t>{0});
}

TEST(DaemonTest, MoreSessionsThanAllowedAreRefused) {
  Server server({"--max-sessions", "2"});
  Outcome first = introduce(server, hello("shm"));
  Outcome second = introduce(server, hello("shm"));
  ASSERT_TRUE(first.session && second.session);
  EXPECT_NE(introduce(server, hello("shm")).refusal.find("--max-sessions"), std::string::npos);
  first.session.reset();
  EXPECT_TRUE(eventually([&] { return introduce(server, hello("shm")).session != nullptr; }));
}

TEST(DaemonTest, AClientThatWaitsIsToldItsPlaceUntilItsTurnComes) {
  Server server({"--max-sessions", "1"});
  Outcome running = introduce(server, hello("shm"));
  ASSERT_TRUE(running.session) << running.refusal;
  wire::Hello message = hello("shm");
  message.wait_ms = 3'600'000;
  std::vector<UniqueFd> clients;
  for (uint32_t place : {1u, 2u}) {
    const UniqueFd& client = clients.emplace_back(server.connect_local());
    ASSERT_TRUE(wire::write_message(client.get(), wire::MessageType::kHello, wire::encode(message),
                                    patience())
                    .ok());
    auto said = wire::read_message(client.get(), patience());
    // Place 0 while the daemon looks up the user's name.
    while (said.ok() && wire::decode<wire::Queued>(said->second)->place == 0) {
      said = wire::read_message(client.get(), patience());
    }
    ASSERT_TRUE(said.ok()) << said.status().message();
    ASSERT_EQ(said->first, wire::MessageType::kQueued);
    const Result<wire::Queued> queued = wire::decode<wire::Queued>(said->second);
    EXPECT_EQ(queued->place, place);
    EXPECT_EQ(queued->reason, "all 1 sessions of the server are taken");
  }
  EXPECT_NE(introduce(server, hello("shm")).refusal.find("are taken"), std::string::npos);
  clients[0].reset();
  running.session.reset();
  const auto answer = read_answer(clients[1].get());
  ASSERT_TRUE(answer.ok()) << answer.status().message();
  EXPECT_EQ(answer->first, wire::MessageType::kWelcome);
}

TEST(DaemonTest, TerminationEndsSessionsAndWorkers) {
  Server server;
  Outcome outcome = introduce(server, hello("shm"));
  ASSERT_TRUE(outcome.session);
  const std::set<pid_t> workers = workers_of(server.pid());
  ASSERT_EQ(::kill(server.pid(), SIGTERM), 0);
  EXPECT_EQ(server.wait(), 0);
  EXPECT_FALSE(answers(*outcome.session));
  for (pid_t worker : workers) EXPECT_NE(::kill(worker, 0), 0) << worker;
}

TEST(DaemonTest, AKilledDaemonTakesItsWorkersAlong) {
  Server server;
  Outcome outcome = introduce(server, hello("shm"));
  ASSERT_TRUE(outcome.session);
  const std::set<pid_t> workers = workers_of(server.pid());
  ASSERT_FALSE(workers.empty());
  // Orphans become children of this process, so that it can wait for their end.
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  ASSERT_EQ(::kill(server.pid(), SIGKILL), 0);
  EXPECT_EQ(server.wait(), -1);
  for (pid_t worker : workers) {
    EXPECT_TRUE(eventually([&] { return ::waitpid(worker, nullptr, WNOHANG) == worker; }))
        << worker;
  }
}

TEST(DaemonTest, ABadDriverIsReportedAtOnce) {
  Server server({"--driver", "/nonexistent/libcuda.so.1"});
  EXPECT_EQ(server.port(), 0);
  EXPECT_EQ(server.wait(), 78);
}

TEST(DaemonTest, ATakenPortIsReported) {
  Server server;
  Server second({"--port", std::to_string(server.port())});
  EXPECT_EQ(second.port(), 0);
  EXPECT_EQ(second.wait(), 1);
}

}  // namespace
}  // namespace rcuda::server
