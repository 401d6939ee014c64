// A program that may start no further threads. It gets a CUDA error and a line with the remedy, or
// the work continues without the thread; the program is never terminated.
#include <atomic>
#include <cstdlib>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>

#include "client/route/host_functions.h"
#include "client/session/task_pool.h"
#include "client/settings/settings.h"
#include "client/trace/trace.h"
#include "tests/support/thread_limit.h"
#include "tests/unit/client/two_puppets.h"

namespace rcuda::client {
namespace {

using test::ThreadLimit;

void expect_mend(const Status& status) {
  EXPECT_EQ(status.code(), Code::kOutOfMemory) << status.message();
  EXPECT_NE(status.context().find("ulimit -u"), std::string::npos) << status.message();
}

TEST(Threads, ASessionThatCannotHaveItsThreadsIsNotOpened) {
  int needed = 0;
  for (bool refused = true; refused; ++needed) {
    ASSERT_LT(needed, 16);
    test::PuppetServer puppet(test::PuppetServer::welcome_with(1));
    puppet.let_client_leave();
    SessionOptions options;
    options.medium = transport::find_medium("shm");
    const ThreadLimit limit(needed);
    const auto session = Session::open({nullptr, "127.0.0.1", puppet.port(), {0}, {0}}, options);
    refused = limit.refused() > 0;
    EXPECT_EQ(session.ok(), !refused) << "with " << needed << " threads";
    if (!session) expect_mend(session.status());
  }
  EXPECT_GT(needed, 2);  // for the Link and for the events
}

TEST(Threads, AHostFunctionThatCouldNotRunIsNotTaken) {
  LoneSession lone;
  WorkerEvents& events = lone.session->events();
  {
    const ThreadLimit limit(0);
    expect_mend(events.add_callback([](CUresult) {}).status());
    expect_mend(events.add_graph_callback({}).status());
    expect_mend(events.start_host_functions());
    EXPECT_EQ(limit.refused(), 3);
  }
  EXPECT_TRUE(events.add_callback([](CUresult) {}).ok());
  EXPECT_EQ(lone.ping(), CUDA_SUCCESS);
}

TEST(Threads, AWorkerThatAsksForOneAllTheSameIsLost) {
  LoneSession lone;
  const ThreadLimit limit(0, ThreadLimit::Of::kProcess);
  wire::HostCallbackEvent event{};
  event.header = {wire::Event::kHostCallback,
                  static_cast<uint32_t>(sizeof event - sizeof(wire::EventHeader))};
  event.callback = 77;
  lone.puppet.send_event(std::as_bytes(std::span(&event, 1)));
  EXPECT_FALSE(
      lone.session->link()
          .wait([] { return false; }, std::chrono::steady_clock::now() + std::chrono::seconds(60))
          .ok());
  EXPECT_EQ(lone.ping(), kSessionLost);
}

// Each of these tests runs in a process of its own, which has not started the threads yet.

TEST_F(TwoPuppetsTest, ALaunchOfAHostFunctionFailsWithoutAThread) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        const ThreadLimit limit(0);
        const CUresult result = launch_host_function(
            nullptr, [](void*) {}, nullptr);
        ::_exit(result == CUDA_ERROR_OUT_OF_MEMORY && limit.refused() == 1 ? 0 : 1);
      },
      testing::ExitedWithCode(0), "ulimit -u");
}

TEST(Threads, ACopyIsDoneByItsCallerAlone) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        ::setenv("RCUDA_COPY_THREADS", "4", 1);
        if (!load_settings().ok()) ::_exit(2);
        const ThreadLimit limit(0);
        std::vector<int> done(100);
        run_parallel(done.size(), [&](size_t i) { ++done[i]; });
        ::_exit(done == std::vector<int>(100, 1) && limit.refused() == 1 ? 0 : 1);
      },
      testing::ExitedWithCode(0), "ulimit -u");
}

TEST(Threads, ATraceThatCannotBeWrittenIsAnError) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        const ThreadLimit limit(0);
        const Status status = trace::start("/dev/null");
        const bool named = status.context().find("RCUDA_TRACE") != std::string::npos &&
                           status.context().find("ulimit -u") != std::string::npos;
        ::_exit(!status.ok() && named && !trace::on() ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace rcuda::client
