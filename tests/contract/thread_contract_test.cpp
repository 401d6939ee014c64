// A Link in a process that cannot start further threads. Either an error names the reason, or
// transfers continue without the threads. The program is never terminated.
#include <string>

#include "tests/contract/link_contract.h"
#include "tests/support/thread_limit.h"

namespace rcuda::test {
namespace {

constexpr size_t kBytes = 32u << 20;

class ThreadContract : public LinkContract {
 protected:
  void SetUp() override {
    if (faulty()) GTEST_SKIP() << "the wrapper has a thread of its own";
  }
};

void expect_mend(const Status& status) {
  EXPECT_EQ(status.code(), Code::kOutOfMemory) << status.message();
  EXPECT_NE(status.context().find("ulimit -u"), std::string::npos) << status.message();
  EXPECT_NE(status.context().find("pids.max"), std::string::npos) << status.message();
}

TEST_P(ThreadContract, AnEndWhoseThreadsCannotStartIsAnError) {
  if (traits().has_adapter) GTEST_SKIP() << "this limit does not reach into the plug-in";
  int needed = 0;
  for (bool refused = true; refused; ++needed) {
    ASSERT_LT(needed, 64);
    // The first thread that starts makes the pair's server end.
    ThreadLimit limit(1 + needed);
    const Result<LinkPair> pair = make_link_pair(medium());
    refused = limit.refused() > 0;
    if (refused) {
      ASSERT_FALSE(pair.ok()) << "with " << needed << " threads";
      expect_mend(pair.status());
    } else {
      EXPECT_TRUE(pair.ok()) << pair.status().message();
    }
  }
  EXPECT_GT(needed, 1);
}

TEST_P(ThreadContract, TransfersEndWithoutTheThreadsTheyWouldHave) {
  SharedBlock there(kBytes), here(kBytes);
  for (const bool writes : {true, false}) {
    connect();
    fill_pattern(there.bytes, 1);
    fill_pattern(here.bytes, 2);
    const auto region = server().expose(there.bytes.data(), there.bytes.size(), there.fd);
    ASSERT_TRUE(region.ok()) << region.status().message();
    (void)client().map(region->id, kBytes, nullptr);  // now the region has been announced
    const ThreadLimit limit(0, ThreadLimit::Of::kProcess);
    const Status status = writes ? write_and_wait(client(), region->id, 0, here.bytes)
                                 : read_and_wait(client(), region->id, 0, here.bytes);
    if (status.ok()) {
      EXPECT_TRUE(has_pattern(writes ? there.bytes : here.bytes, writes ? 2 : 1));
      continue;
    }
    // The Link is lost. The side that could not start its thread gives the reason.
    EXPECT_GT(limit.refused(), 0);
    EXPECT_EQ(status.code(), Code::kUnavailable);
    EXPECT_FALSE(client().wait([] { return false; }, soon()).ok());
    EXPECT_FALSE(server().wait([] { return false; }, soon()).ok());
    const std::string why = client().status().context() + server().status().context();
    EXPECT_NE(why.find("ulimit -u"), std::string::npos) << why;
  }
}

INSTANTIATE_TEST_SUITE_P(Link, ThreadContract, testing::ValuesIn(link_cases()), link_case_name);

}  // namespace
}  // namespace rcuda::test
