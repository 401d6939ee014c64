// Counters of a session's work, in memory that its worker and the daemon share.
#include "server/protocol/work_page.h"

#include <algorithm>
#include <vector>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

namespace rcuda::server {
namespace {

TEST(WorkPageTest, OneSideWritesAndTheOtherReads) {
  Result<WorkPage> daemons = WorkPage::make();
  ASSERT_TRUE(daemons.ok());
  Result<WorkPage> workers = WorkPage::open(UniqueFd(::dup(daemons->descriptor())));
  ASSERT_TRUE(workers.ok());
  EXPECT_EQ(daemons->read().counts, wire::Work().counts);
  wire::Work work;
  work.counts = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
  workers->write(work);
  EXPECT_EQ(daemons->read().counts, work.counts);
  EXPECT_EQ(daemons->held(3), 0u);
  workers->hold(3, 12);
  EXPECT_EQ(daemons->held(3), 12u);
  workers->hold(WorkPage::kDevices, 13);
  EXPECT_EQ(daemons->held(WorkPage::kDevices), 0u);
  daemons->keep_free(3, 14);
  EXPECT_EQ(workers->kept_free(3), 14u);
  daemons->keep_free(WorkPage::kDevices, 15);
  EXPECT_EQ(workers->kept_free(WorkPage::kDevices), 0u);
}

// over_at() keeps the first time. Otherwise a hostile worker could change the time, and clients that
// wait for the session's end would wait without limit.
TEST(WorkPageTest, TheEndIsToldOnce) {
  Result<WorkPage> daemons = WorkPage::make();
  ASSERT_TRUE(daemons.ok());
  Result<WorkPage> workers = WorkPage::open(UniqueFd(::dup(daemons->descriptor())));
  ASSERT_TRUE(workers.ok());
  EXPECT_EQ(daemons->over_at(), 0u);
  workers->set_over_at(7);
  EXPECT_EQ(daemons->over_at(), 7u);
  workers->set_over_at(8);
  EXPECT_EQ(daemons->over_at(), 7u);
}

TEST(WorkPageTest, CommunicatorsJoinAndLeave) {
  Result<WorkPage> page = WorkPage::make();
  ASSERT_TRUE(page.ok());
  using Tags = std::vector<uint64_t>;
  page->join(7);
  page->join(8);
  page->join(7);
  page->leave(7);
  page->leave(9);
  Tags tags = page->communicators();
  std::ranges::sort(tags);
  EXPECT_EQ(tags, (Tags{7, 8}));
  for (uint64_t tag = 1; tag <= WorkPage::kCommunicators; ++tag) page->join(100 + tag);
  EXPECT_EQ(page->communicators().size(), WorkPage::kCommunicators);
  page->leave_all();
  EXPECT_EQ(page->communicators(), Tags{});
}

TEST(WorkPageTest, NobodyCanChangeItsSize) {
  Result<WorkPage> page = WorkPage::make();
  ASSERT_TRUE(page.ok());
  EXPECT_NE(::ftruncate(page->descriptor(), 0), 0);
}

TEST(WorkPageTest, OtherMemoryIsRefused) {
  UniqueFd unsealed(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(unsealed.get(), sizeof(wire::Work)), 0);
  EXPECT_EQ(WorkPage::open(std::move(unsealed)).status().code(), Code::kProtocol);
  UniqueFd empty(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::fcntl(empty.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
  EXPECT_EQ(WorkPage::open(std::move(empty)).status().code(), Code::kProtocol);
}

}  // namespace
}  // namespace rcuda::server
