// Reports of a worker through its pipe.
#include "server/protocol/reports.h"

#include <string>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

namespace rcuda::server {
namespace {

class ReportsTest : public testing::Test {
 protected:
  void SetUp() override {
    int ends[2];
    ASSERT_EQ(::pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
    daemon_.reset(ends[0]);
    worker_.reset(ends[1]);
    ::signal(SIGPIPE, SIG_IGN);  // as a worker does
  }
  static WorkerMessage message(size_t bytes) {
    WorkerMessage made;
    made.type = WorkerMessageType::kReady;
    made.index = 7;
    for (size_t i = 0; i < bytes; ++i) made.body.push_back(static_cast<std::byte>(i * 11));
    return made;
  }
  Status send(const WorkerMessage& sent) {
    return send_report(worker_.get(), sent, std::chrono::steady_clock::now());
  }

  UniqueFd daemon_, worker_;
  ReportReader reader_;
};

TEST_F(ReportsTest, AReportArrivesWhole) {
  for (const size_t bytes : {size_t{0}, size_t{1}, kReportBytes, 5 * kReportBytes}) {
    const WorkerMessage sent = message(bytes);
    ASSERT_TRUE(send(sent).ok());
    const auto got = reader_.read(daemon_.get());
    ASSERT_TRUE(got.ok() && *got) << bytes;
    EXPECT_EQ((*got)->type, sent.type);
    EXPECT_EQ((*got)->index, sent.index);
    EXPECT_EQ((*got)->body, sent.body);
  }
  const auto nothing = reader_.read(daemon_.get());
  EXPECT_TRUE(nothing.ok() && !*nothing);
}

TEST_F(ReportsTest, WhatIsNotAReportIsRefused) {
  const char text[] = "half a frame";
  ASSERT_EQ(::write(worker_.get(), text, sizeof text), static_cast<ssize_t>(sizeof text));
  EXPECT_EQ(reader_.read(daemon_.get()).status().code(), Code::kProtocol);
  const std::string lie(kReportBytes, '\xff');  // 4 GiB follow
  ASSERT_EQ(::write(worker_.get(), lie.data(), lie.size()), static_cast<ssize_t>(lie.size()));
  EXPECT_EQ(reader_.read(daemon_.get()).status().code(), Code::kProtocol);
}

TEST_F(ReportsTest, ADaemonThatDoesNotReadOrHasGoneHoldsNoWorker) {
  Status status;
  for (int i = 0; i < 1000 && status.ok(); ++i) status = send(message(0));
  EXPECT_EQ(status.code(), Code::kTimeout);
  daemon_.reset();
  EXPECT_EQ(send(message(0)).code(), Code::kUnavailable);
}

}  // namespace
}  // namespace rcuda::server
