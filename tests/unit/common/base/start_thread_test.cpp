// Threads of the library in a program: they must not take the program's signals.
#include "common/base/start_thread.h"

#include <csignal>

#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/support/thread_limit.h"

namespace rcuda {
namespace {

constexpr int kProgramSignals[] = {SIGTERM, SIGINT,  SIGHUP,  SIGCHLD, SIGALRM,
                                   SIGUSR1, SIGPROF, SIGQUIT, SIGPIPE};
constexpr int kFaults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS};

sigset_t blocked_here() {
  sigset_t blocked;
  sigemptyset(&blocked);
  EXPECT_EQ(::pthread_sigmask(SIG_BLOCK, nullptr, &blocked), 0);
  return blocked;
}

TEST(StartThread, TakesNoSignalsButThoseOfItsFaults) {
  sigset_t blocked;
  sigfillset(&blocked);
  std::thread thread;
  ASSERT_TRUE(start_thread(&thread, [&] { blocked = blocked_here(); }).ok());
  thread.join();
  for (const int signal : kProgramSignals) EXPECT_EQ(sigismember(&blocked, signal), 1) << signal;
  EXPECT_EQ(sigismember(&blocked, SIGRTMIN), 1);
  for (const int signal : kFaults) EXPECT_EQ(sigismember(&blocked, signal), 0) << signal;
}

TEST(StartThread, LeavesTheCallerItsOwn) {
  sigset_t own, before;
  sigemptyset(&own);
  sigaddset(&own, SIGUSR2);
  ASSERT_EQ(::pthread_sigmask(SIG_SETMASK, &own, &before), 0);
  for (const int more : {1, 0}) {
    const test::ThreadLimit limit(more);
    std::thread thread;
    EXPECT_EQ(start_thread(&thread, [] {}).ok(), more == 1);
    const sigset_t after = blocked_here();
    for (const int signal : kProgramSignals) EXPECT_EQ(sigismember(&after, signal), 0) << signal;
    EXPECT_EQ(sigismember(&after, SIGUSR2), 1);
    if (thread.joinable()) thread.join();
  }
  ASSERT_EQ(::pthread_sigmask(SIG_SETMASK, &before, nullptr), 0);
}

// Like a daemon, the program blocks signals in its threads and receives them with sigwait().
TEST(StartThread, AProgramThatWaitsForASignalGetsIt) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        std::thread thread;
        int ends[2];
        if (::pipe(ends) != 0) ::_exit(2);
        char byte;
        if (!start_thread(&thread, [&] { (void)!::read(ends[0], &byte, 1); }).ok()) ::_exit(3);
        sigset_t wanted;
        sigemptyset(&wanted);
        sigaddset(&wanted, SIGTERM);
        ::pthread_sigmask(SIG_BLOCK, &wanted, nullptr);
        ::kill(::getpid(), SIGTERM);
        int got = 0;
        sigwait(&wanted, &got);
        ::_exit(got == SIGTERM ? 0 : 4);
      },
      testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace rcuda
