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
  Status send(const ToDaemon& sent) {
    return send_report(worker_.get(), sent, std::chrono::steady_clock::now());
  }

  UniqueFd daemon_, worker_;
  ReportReader reader_;
};

TEST_F(ReportsTest, AReportArrivesWhole) {
  for (const size_t devices : {size_t{0}, size_t{1}, size_t{500}}) {
    WorkerReady sent;
    for (size_t i = 0; i < devices; ++i) {
      sent.identities.push_back({"GPU-" + std::to_string(i), std::string(30, 'x')});
    }
    sent.devices.resize(devices);
    ASSERT_EQ(encode_message(ToDaemon(sent)).size() > 4 * kReportBytes, devices == 500);
    ASSERT_TRUE(send(sent).ok());
    const auto got = reader_.read(daemon_.get());
    ASSERT_TRUE(got.ok() && *got) << devices;
    EXPECT_EQ(encode_message(**got), encode_message(ToDaemon(sent)));
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
  for (int i = 0; i < 1000 && status.ok(); ++i) status = send(SessionTotals());
  EXPECT_EQ(status.code(), Code::kTimeout);
  daemon_.reset();
  EXPECT_EQ(send(SessionTotals()).code(), Code::kUnavailable);
}

}  // namespace
}  // namespace rcuda::server
