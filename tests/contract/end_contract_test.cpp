// How Links end: on purpose, by a peer's death or silence, by a broken medium, by a hostile peer.
#include <future>
#include <random>
#include <thread>

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/contract/link_contract.h"

namespace rcuda::test {
namespace {

using transport::Bootstrap;
using transport::Bytes;
using transport::Link;
using transport::LinkOptions;
using transport::Region;
using transport::RegionId;

// The roles of the peer processes.
constexpr size_t kLargeBlock = 64 << 20;
constexpr int kStoppedPuts = 3000;

void expose_and_stay(Link& link) {
  SharedBlock block(kLargeBlock);
  (void)link.expose(block.bytes.data(), block.bytes.size(), block.fd);
  (void)put_word(link, 0, 1);
  ::pause();
}

void stay(Link&) { ::pause(); }

void count_puts(Link& link) {
  (void)put_word(link, 0, 1);
  (void)link.wait([&] { return load(link, 16376) == kStoppedPuts; }, soon());
  (void)put_word(link, 0, 2);
  (void)link.wait([] { return false; }, soon());
}

void answer(Link& link) {
  (void)put_word(link, 0, 1);
  (void)link.wait([&] { return load(link, 8) == 1; }, soon());
  (void)put_word(link, 0, 2);
  (void)link.wait([] { return false; }, soon());
}

void be_silent(Link& link) {
  link.announce_silence(true);
  (void)put_word(link, 0, 1);
  (void)link.wait([&] { return load(link, 8) == 1; }, soon());
  link.announce_silence(false);
  (void)put_word(link, 0, 2);
  ::pause();
}

void fork_a_child_that_abandons(Link& link) {
  const pid_t child = ::fork();
  if (child == 0) {
    link.abandon();
    ::sleep(100);
    ::_exit(0);
  }
  (void)put_word(link, 0, static_cast<uint64_t>(child));
  ::pause();
}

const PeerRole kRoles[] = {{"expose_and_stay", expose_and_stay},
                           {"stay", stay},
                           {"count_puts", count_puts},
                           {"answer", answer},
                           {"be_silent", be_silent},
                           {"fork_a_child_that_abandons", fork_a_child_that_abandons}};

class EndContract : public LinkContract {
 protected:
  // Makes every kind of call on a Link that has ended.
  void expect_ended(Link& link) {
    const Status why = link.status();
    EXPECT_EQ(why.code(), Code::kUnavailable);
    EXPECT_EQ(put_word(link, 0, 1).message(), why.message());
    EXPECT_EQ(link.wait([] { return false; }, soon()).message(), why.message());
    EXPECT_TRUE(link.wait([] { return true; }, soon()).ok());
    std::vector<std::byte> bytes(100'000);
    EXPECT_EQ(link.expose(bytes.data(), bytes.size()).status().message(), why.message());
    EXPECT_EQ(write_and_wait(link, RegionId{1}, 0, bytes).code(), Code::kUnavailable);
    EXPECT_EQ(read_and_wait(link, RegionId{1}, 0, bytes).code(), Code::kUnavailable);
  }

  static Status wait_for_end(Link& link) {
    return link.wait([] { return false; }, soon());
  }

  std::unique_ptr<Link> wrap(std::unique_ptr<Link> link) {
    if (!wrapped()) return link;
    return std::make_unique<FaultLink>(std::move(link), FaultPlan{.seed = 5});
  }
};

TEST_P(EndContract, CloseEndsBothSides) {
  connect();
  ASSERT_TRUE(put_word(client(), 0, 17).ok());
  client().close();
  expect_ended(client());
  EXPECT_EQ(wait_for_end(server()).code(), Code::kUnavailable);
  EXPECT_NE(server().status().context().find("ended the session"), std::string::npos)
      << server().status().message();
  expect_ended(server());
  EXPECT_EQ(load(server(), 0), 17u);  // an earlier put has arrived
}

// The waiting thread checks just before the last put arrives, and checks again only after the Link
// has ended.
TEST_P(EndContract, WhatWasPutBeforeTheEndEndsAWait) {
  connect();
  bool late = false;
  const auto arrived = [&] {
    if (load(server(), 0) != 0) return true;
    if (late) return false;
    late = true;
    EXPECT_TRUE(put_word(client(), 0, 17).ok());
    client().close();
    EXPECT_EQ(wait_for_end(server()).code(), Code::kUnavailable);
    return false;
  };
  EXPECT_TRUE(server().wait(arrived, soon()).ok());
}

TEST_P(EndContract, ABrokenMediumEndsBothSides) {
  connect();
  std::thread sleeper([&] { EXPECT_EQ(wait_for_end(client()).code(), Code::kUnavailable); });
  cut_();
  EXPECT_EQ(wait_for_end(server()).code(), Code::kUnavailable);
  sleeper.join();
  expect_ended(client());
  expect_ended(server());
}

TEST_P(EndContract, AMediumThatBreaksUnderLoadLosesNoCompletion) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    SharedBlock block(8 << 20);
    Result<LinkPair> pair = make_link_pair(medium());
    ASSERT_TRUE(pair.ok()) << pair.status().message();
    FaultPlan plan{.seed = seed, .break_after = 40 + seed * 7, .cut = pair->cut};
    FaultLink server(std::move(pair->server), plan);
    const Result<Region> region =
        pair->client->expose(block.bytes.data(), block.bytes.size(), block.fd);
    ASSERT_TRUE(region.ok());
    std::vector<std::byte> local(block.bytes.size());
    constexpr int kTransfers = 100;
    std::atomic<int> completed{0};
    for (int i = 0; i < kTransfers; ++i) {
      (void)put_word(server, 8, i);
      const auto done = [&](const Status&) { ++completed; };
      if (i % 2 == 0) {
        server.write(region->id, 0, local.data(), local.size(), done);
      } else {
        server.read(region->id, 0, local.data() + 1, local.size() - 1, done);
      }
    }
    EXPECT_EQ(wait_for_end(server).code(), Code::kUnavailable);
    EXPECT_EQ(wait_for_end(*pair->client).code(), Code::kUnavailable);
    pair->client.reset();
    server.close();
    while (completed != kTransfers) std::this_thread::yield();
  }
}

TEST_P(EndContract, AKilledPeerIsNoticedByAllWhoWait) {
  Result<PeerProcess> peer = PeerProcess::start(medium(), {}, "expose_and_stay");
  ASSERT_TRUE(peer.ok()) << peer.status().message();
  const std::unique_ptr<Link> link = wrap(peer->take_link());
  ASSERT_TRUE(link->wait([&] { return load(*link, 0) == 1; }, soon()).ok());
  std::vector<std::thread> sleepers;
  for (int i = 0; i < 3; ++i) {
    sleepers.emplace_back([&] { EXPECT_EQ(wait_for_end(*link).code(), Code::kUnavailable); });
  }
  peer->kill(SIGKILL);
  for (std::thread& thread : sleepers) thread.join();
  expect_ended(*link);
}

TEST_P(EndContract, APeerKilledInMidTransferFailsThatTransfer) {
  for (int lap = 0; lap < 3; ++lap) {
    Result<PeerProcess> peer = PeerProcess::start(medium(), {}, "expose_and_stay");
    ASSERT_TRUE(peer.ok()) << peer.status().message();
    const std::unique_ptr<Link> link = wrap(peer->take_link());
    ASSERT_TRUE(link->wait([&] { return load(*link, 0) == 1; }, soon()).ok());
    std::vector<std::byte> bytes(kLargeBlock);
    constexpr int kTransfers = 20;
    std::promise<void> all;
    std::atomic<int> left{kTransfers};
    std::atomic<int> failed{0};
    for (int i = 0; i < kTransfers; ++i) {
      const auto done = [&](const Status& status) {
        if (!status.ok()) ++failed;
        if (--left == 0) all.set_value();
      };
      if (i % 2 == 0) {
        link->write(RegionId{1}, 0, bytes.data(), bytes.size(), done);
      } else {
        link->read(RegionId{1}, 0, bytes.data(), bytes.size(), done);
      }
    }
    peer->kill(SIGKILL);
    ASSERT_EQ(all.get_future().wait_for(kPatience), std::future_status::ready);
    EXPECT_GT(failed, 0);
    EXPECT_EQ(wait_for_end(*link).code(), Code::kUnavailable);
  }
}

TEST_P(EndContract, ASilentPeerIsGivenUpAfterItsTimeout) {
  const LinkOptions impatient{.peer_timeout = std::chrono::milliseconds(1000)};
  Result<PeerProcess> peer = PeerProcess::start(medium(), impatient, "stay");
  ASSERT_TRUE(peer.ok()) << peer.status().message();
  // Both ends send only heartbeats, which keep the Link alive.
  const std::unique_ptr<Link> link = wrap(peer->take_link());
  EXPECT_EQ(link->wait([] { return false; },
                       std::chrono::steady_clock::now() + std::chrono::milliseconds(1500))
                .code(),
            Code::kTimeout);
  peer->kill(SIGSTOP);
  EXPECT_EQ(wait_for_end(*link).code(), Code::kUnavailable);
  EXPECT_NE(link->status().context().find("silent"), std::string::npos) << link->status().message();
}

TEST_P(EndContract, AnAnnouncedSilenceMayLastUntilItIsWithdrawn) {
  const LinkOptions impatient{.peer_timeout = std::chrono::milliseconds(1000)};
  Result<PeerProcess> peer = PeerProcess::start(medium(), impatient, "be_silent");
  ASSERT_TRUE(peer.ok()) << peer.status().message();
  const std::unique_ptr<Link> link = wrap(peer->take_link());
  ASSERT_TRUE(link->wait([&] { return load(*link, 0) == 1; }, soon()).ok());
  peer->kill(SIGSTOP);
  std::thread writer([&] {  // more than the buffers hold, so the stopped peer's window closes
    const std::vector<std::byte> bytes(16384);
    for (int i = 0; i < kStoppedPuts; ++i) {
      ASSERT_TRUE(link->put(16384, bytes, {}, transport::Wake::kYes).ok());
    }
  });
  EXPECT_EQ(link->wait([] { return false; },
                       std::chrono::steady_clock::now() + std::chrono::milliseconds(2500))
                .code(),
            Code::kTimeout);
  peer->kill(SIGCONT);
  writer.join();
  ASSERT_TRUE(put_word(*link, 8, 1).ok());
  ASSERT_TRUE(link->wait([&] { return load(*link, 0) == 2; }, soon()).ok())
      << link->status().message();
  peer->kill(SIGSTOP);
  EXPECT_EQ(wait_for_end(*link).code(), Code::kUnavailable);
}

TEST_P(EndContract, AStoppedPeerHoldsPutsBackAndLosesNone) {
  if (traits().has_adapter) GTEST_SKIP() << "the adapter takes puts for a stopped process";
  const LinkOptions patient{.window_bytes = 1 << 20, .peer_timeout = std::chrono::milliseconds(0)};
  Result<PeerProcess> peer = PeerProcess::start(medium(), patient, "count_puts");
  ASSERT_TRUE(peer.ok()) << peer.status().message();
  const std::unique_ptr<Link> link = wrap(peer->take_link());
  ASSERT_TRUE(link->wait([&] { return load(*link, 0) == 1; }, soon()).ok());
  peer->kill(SIGSTOP);
  std::thread writer([&] {
    std::vector<std::byte> bytes(16384);
    for (uint64_t i = 1; i <= kStoppedPuts; ++i) {
      std::memcpy(bytes.data() + 16376, &i, 8);
      ASSERT_TRUE(link->put(0, bytes, {}, transport::Wake::kYes).ok());
    }
  });
  // Lets the buffers fill. No put may be lost, and the Link must not break.
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_TRUE(link->status().ok());
  peer->kill(SIGCONT);
  EXPECT_TRUE(link->wait([&] { return load(*link, 0) == 2; }, soon()).ok());
  writer.join();
}

TEST_P(EndContract, AStoppedPeerThatGoesOnHearsWhatWasSentMeanwhile) {
  if (faulty()) GTEST_SKIP() << "the side that is stopped has no wrapper";
  if (traits().has_adapter) GTEST_SKIP() << "listens as shm does";
  const LinkOptions patient{.peer_timeout = std::chrono::milliseconds(0)};
  const LinkOptions impatient{.peer_timeout = std::chrono::milliseconds(1000)};
  Result<PeerProcess> peer = PeerProcess::start(medium(), patient, impatient, "answer");
  ASSERT_TRUE(peer.ok()) << peer.status().message();
  Link& link = peer->link();
  ASSERT_TRUE(link.wait([&] { return load(link, 0) == 1; }, soon()).ok());
  peer->kill(SIGSTOP);
  // Longer than the peer's timeout. This side still sends heartbeats, which wait for the peer.
  std::this_thread::sleep_for(impatient.peer_timeout * 3 / 2);
  peer->kill(SIGCONT);
  ASSERT_TRUE(put_word(link, 8, 1).ok());
  EXPECT_TRUE(link.wait([&] { return load(link, 0) == 2; }, soon()).ok())
      << link.status().message();
}

TEST_P(EndContract, AForkedChildThatAbandonsDoesNotKeepTheSessionAlive) {
  // The peer forks, its child abandons the Link and keeps running, and the peer is killed.
  Result<PeerProcess> peer = PeerProcess::start(medium(), {}, "fork_a_child_that_abandons");
  ASSERT_TRUE(peer.ok()) << peer.status().message();
  const std::unique_ptr<Link> link = wrap(peer->take_link());
  ASSERT_TRUE(link->wait([&] { return load(*link, 0) != 0; }, soon()).ok());
  peer->kill(SIGKILL);
  EXPECT_EQ(wait_for_end(*link).code(), Code::kUnavailable);
  ::kill(static_cast<pid_t>(load(*link, 0)), SIGKILL);
}

TEST_P(EndContract, LinksComeAndGoWithoutLeavingDescriptorsBehind) {
  const auto open_descriptors = [] {
    int count = 0;
    for (int fd = 0; fd < 4096; ++fd) count += ::fcntl(fd, F_GETFD) >= 0;
    return count;
  };
  connect();  // opens the descriptors that stay open
  client_.reset();
  server_.reset();
  cut_ = nullptr;
  const int before = open_descriptors();
  const int count = rounds(50, faulty());
  for (int i = 0; i < count; ++i) {
    connect();
    ASSERT_TRUE(put_word(client(), 0, 1).ok());
  }
  client_.reset();
  server_.reset();
  cut_ = nullptr;
  EXPECT_EQ(open_descriptors(), before);
}

INSTANTIATE_TEST_SUITE_P(Link, EndContract, testing::ValuesIn(link_cases()), link_case_name);

}  // namespace
}  // namespace rcuda::test
