// The log of a program that forks while its other threads write lines.
#include "common/base/log.h"

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/unique_fd.h"

namespace rcuda {
namespace {

TEST(Log, AChildLogsWhateverOtherThreadsDidAtTheFork) {
  const UniqueFd nowhere(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  ASSERT_TRUE(nowhere);
  set_log_descriptor(nowhere.get());
  std::atomic<bool> logging{false}, stop{false};
  std::thread writer([&] {
    while (!stop.load()) {
      RCUDA_ERROR("a line");
      logging.store(true);
    }
  });
  while (!logging.load()) std::this_thread::yield();
  bool ended = true;
  for (int i = 0; i < 20 && ended; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(60);  // ends a child that hangs
      RCUDA_ERROR("a line of the child's");
      ::_exit(0);
    }
    int status = -1;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    ended = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    EXPECT_TRUE(ended) << "child " << i << ", status " << status;
  }
  stop.store(true);
  writer.join();
  set_log_descriptor(STDERR_FILENO);
}

TEST(Log, WhatALineQuotesCannotBeginAnother) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
  const UniqueFd reader(ends[0]), writer(ends[1]);
  set_log_descriptor(writer.get());
  RCUDA_ERROR("session of %s over",
              "eve\n09:00:00 rcuda-server[1] info: \x1b[2Jall is\twell\x7f\xc2\x9b"
              "2J \xc3\xa9");
  set_log_descriptor(STDERR_FILENO);
  char text[512] = {};
  ASSERT_GT(::read(reader.get(), text, sizeof text - 1), 0);
  const std::string_view line(text);
  EXPECT_NE(
      line.find(
          "session of eve?09:00:00 rcuda-server[1] info: ?[2Jall is?well???2J \xc3\xa9 over\n"),
      std::string_view::npos)
      << line;
  EXPECT_EQ(line.find('\n'), line.size() - 1);
  EXPECT_THAT(text, testing::ContainsRegex("^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}\\.[0-9]{3}Z "
                                           "rcuda\\[[0-9]+\\] error: "));
}

TEST(Log, TimesAreInUtc) {
  ASSERT_EQ(::setenv("TZ", "XYZ-5:30", 1), 0);
  ::tzset();
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
  const UniqueFd reader(ends[0]), writer(ends[1]);
  set_log_descriptor(writer.get());
  const std::time_t before = std::time(nullptr);
  RCUDA_ERROR("an own line");
  write_log_line_of("worker 1", "<E>a line of another process");
  const std::time_t after = std::time(nullptr);
  set_log_descriptor(STDERR_FILENO);
  ::unsetenv("TZ");
  ::tzset();
  char text[512] = {};
  ASSERT_GT(::read(reader.get(), text, sizeof text - 1), 0);
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::tm parts{};
    const char* const end = ::strptime(line.c_str(), "%Y-%m-%dT%H:%M:%S", &parts);
    ASSERT_NE(end, nullptr) << line;
    EXPECT_THAT(end, testing::ContainsRegex("^\\.[0-9]{3}Z ")) << line;
    const std::time_t time = ::timegm(&parts);
    EXPECT_TRUE(before <= time && time <= after) << line;
  }
}

}  // namespace
}  // namespace rcuda
