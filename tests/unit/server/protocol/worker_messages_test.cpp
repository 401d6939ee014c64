#include "server/protocol/worker_messages.h"

#include <string>
#include <utility>

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/socket_io.h"

namespace rcuda::server {
namespace {

SessionStart session_start() {
  SessionStart start;
  start.grant.user = "user7";
  start.grant.uid = 7;
  start.grant.gid = 10'007;
  start.grant.groups = {4, 10'007};
  start.grant.most_processes = 5;
  start.grant.most_data_bytes = 6;
  start.hello.medium = "shm";
  start.hello.devices = {3};
  start.token[15] = 77;
  return start;
}

class WorkerMessagesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int ends[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    daemon_.reset(ends[0]);
    worker_.reset(ends[1]);
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    client_.reset(ends[0]);
    passed_.reset(ends[1]);
  }
  Status send(const ToWorker& message, int descriptor) {
    return send_to_worker(daemon_.get(), message, descriptor, Deadline::max());
  }

  UniqueFd daemon_, worker_, client_, passed_;
};

TEST_F(WorkerMessagesTest, ASessionTravelsWithItsSocket) {
  SessionStart sent = session_start();
  sent.peeked = 5;
  ASSERT_EQ(::write(client_.get(), "HelloA", 6), 6);
  ASSERT_TRUE(send(std::move(sent), passed_.get()).ok());
  passed_.reset();
  Result<ToWorker> message = receive_from_daemon(worker_.get());
  ASSERT_TRUE(message.ok()) << message.status().message();
  const auto* const got = std::get_if<SessionStart>(&*message);
  ASSERT_NE(got, nullptr);
  EXPECT_EQ(got->grant.user, "user7");
  EXPECT_EQ(got->grant.uid, 7u);
  EXPECT_EQ(got->grant.gid, 10'007u);
  EXPECT_EQ(got->grant.groups, (std::vector<uint32_t>{4, 10'007}));
  EXPECT_FALSE(got->grant.own_user);
  EXPECT_EQ(got->grant.most_processes, 5u);
  EXPECT_EQ(got->grant.most_data_bytes, 6u);
  EXPECT_EQ(got->hello.devices, std::vector<uint32_t>{3});
  EXPECT_EQ(got->token[15], 77);
  char byte = 0;
  EXPECT_EQ(::read(got->descriptor.get(), &byte, 1), 1);
  EXPECT_EQ(byte, 'A') << "what the daemon has peeked at is taken";
  daemon_.reset();
  EXPECT_EQ(receive_from_daemon(worker_.get()).status().code(), Code::kUnavailable);
}

// Messages that are truncated, too long, of an unknown type, or with another number of descriptors.
TEST_F(WorkerMessagesTest, WhatIsNotAMessageIsRefused) {
  const std::vector<std::byte> bytes = encode_message(ToWorker(session_start()));
  for (size_t count = 1; count < bytes.size(); ++count) {
    const int socket = passed_.get();
    ASSERT_TRUE(
        send_with_fds(daemon_.get(), std::span(bytes).first(count), {&socket, 1}, Deadline::max())
            .ok());
    EXPECT_EQ(receive_from_daemon(worker_.get()).status().code(), Code::kProtocol) << count;
  }
  const uint32_t unknown = std::variant_size_v<ToWorker>;
  ASSERT_TRUE(send_with_fds(daemon_.get(), bytes_of(unknown), {}, Deadline::max()).ok());
  EXPECT_EQ(receive_from_daemon(worker_.get()).status().code(), Code::kProtocol);
  ASSERT_TRUE(send(FurtherSocket(), -1).ok());
  EXPECT_EQ(receive_from_daemon(worker_.get()).status().code(), Code::kProtocol);
  ASSERT_TRUE(send(StopRequest(), passed_.get()).ok());
  EXPECT_EQ(receive_from_daemon(worker_.get()).status().code(), Code::kProtocol);
  SessionStart large;
  large.grant.groups.assign(kMostWorkerMessageBytes, 1);
  EXPECT_EQ(send(std::move(large), passed_.get()).code(), Code::kInvalidArgument);
  EXPECT_TRUE(send(StopRequest{"a reason"}, -1).ok());
  EXPECT_EQ(std::get<StopRequest>(*receive_from_daemon(worker_.get())).why, "a reason");
}

TEST(ToDaemonTest, WhatAWorkerOffersSurvives) {
  const WorkerReady sent{"a driver",
                         {{3, "one", 10}, {1, "other", 20}},
                         {{"GPU-3", "03:00"}, {"GPU-1", "01:00"}},
                         "no",
                         "/lib/a",
                         13000};
  const Result<ToDaemon> message = decode_message<ToDaemon>(encode_message(ToDaemon(sent)));
  ASSERT_TRUE(message.ok());
  const auto& got = std::get<WorkerReady>(*message);
  EXPECT_EQ(got.ordinals(), (std::vector<uint32_t>{3, 1}));
  EXPECT_EQ(got.devices[1].name, "other");
  EXPECT_EQ(got.driver, sent.driver);
  EXPECT_EQ(got.warning, "no");
  EXPECT_EQ(got.devices[1].total_bytes, 20u);
  EXPECT_EQ(got.identities[1].uuid, "GPU-1");
  EXPECT_EQ(got.identities[0].pci_bus_id, "03:00");
  EXPECT_EQ(got.driver_path, "/lib/a");
  EXPECT_EQ(got.driver_version, 13000u);
  EXPECT_FALSE(decode_message<ToDaemon>({}).ok());
  EXPECT_FALSE(decode_message<ToDaemon>(std::vector<std::byte>(6, std::byte{0xff})).ok());
}

}  // namespace
}  // namespace rcuda::server
