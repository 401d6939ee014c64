// The lines of a worker, as the daemon writes them to its log.
#include "server/daemon/pool/worker_log.h"

#include <algorithm>
#include <string>

#include <gtest/gtest.h>
#include <unistd.h>

#include "common/base/log.h"
#include "tests/support/temp_folder.h"

namespace rcuda::server {
namespace {

class WorkerLogTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(log_.open(&worker_).ok());
    log_.set_worker(77);
    ASSERT_TRUE(set_log_file(folder_.file("log").c_str()));
  }
  void TearDown() override { set_log_descriptor(STDERR_FILENO); }

  // Writes text as the worker. Returns whether the pipe took all of it.
  bool say(const std::string& text) {
    return ::write(worker_.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
  }
  // The lines of the log since the last call, without their times.
  std::string lines() {
    std::string all = folder_.read("log").substr(seen_), text;
    seen_ += all.size();
    for (size_t at = 0; at < all.size();) {
      const size_t end = std::min(all.find('\n', at), all.size());
      const std::string line = all.substr(at, end - at);
      text += line.substr(std::min(line.find("rcuda"), line.size())) + "\n";
      at = end + 1;
    }
    return text;
  }

  const test::TempFolder folder_;
  size_t seen_ = 0;
  WorkerLog log_;
  UniqueFd worker_;
  const WorkerLog::Clock::time_point now_ = WorkerLog::Clock::now();
};

TEST_F(WorkerLogTest, ALineHasTheWorkersNumberAndCannotLookLikeAnothersLine) {
  ASSERT_TRUE(say("<W>memory is short\n09:00:00.000 rcuda-server[1] info: \x1b[2Jfo"));
  log_.relay(now_);
  EXPECT_EQ(lines(), "rcuda-worker[77] warning: memory is short\n") << "half a line waits for its end";
  ASSERT_TRUE(say(std::string("rged\0\n<X>no level\n<", 19)));
  log_.relay(now_);
  EXPECT_EQ(lines(),
            "rcuda-worker[77] info: 09:00:00.000 rcuda-server[1] info: ?[2Jforged?\n"
            "rcuda-worker[77] info: <X>no level\n");
  log_.finish(now_);
  EXPECT_EQ(lines(), "rcuda-worker[77] info: <\n") << "what was left at its end";
}

TEST_F(WorkerLogTest, ALineWithoutAnEndIsWrittenInPieces) {
  ASSERT_TRUE(say(std::string(10'000, 'x')));
  log_.relay(now_);
  const std::string text = lines();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2);
}

TEST_F(WorkerLogTest, AFloodIsBounded) {
  std::string flood;
  for (int i = 0; i < 1000; ++i) flood += "<E>" + std::string(60, 'x') + "\n";
  size_t written = 0;
  for (int i = 0; i < 10; ++i) {
    (void)say(flood);
    log_.relay(now_);
    const std::string text = lines();
    written += static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
  }
  // Lines beyond the bound are written only if the same read has returned them. One more line
  // reports that lines are missing.
  EXPECT_LT(written, WorkerLog::kMostLines + 100);
  EXPECT_EQ(log_.descriptor(now_), -1);
  EXPECT_FALSE(say(flood)) << "the worker is not blocked; its lines are lost";
  EXPECT_GT(log_.descriptor(log_.resumes_at()), -1);
  log_.relay(log_.resumes_at());
  EXPECT_NE(lines(), "");
}

TEST_F(WorkerLogTest, AWorkerThatClosesItsLogIsNotPolled) {
  worker_.reset();
  log_.relay(now_);
  EXPECT_EQ(log_.descriptor(now_), -1);
}

}  // namespace
}  // namespace rcuda::server
