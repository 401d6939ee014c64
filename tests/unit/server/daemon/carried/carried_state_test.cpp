#include "server/daemon/carried/carried_state.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

namespace rcuda::server {
namespace {

CarriedState example() {
  CarriedState state;
  state.settings = {{"port", "9000", "the command line"}, {"listen", "127.0.0.1", ""}};
  state.listener.roots = {7, "/run/rcuda/9000.sock"};
  state.budgets = {{"uid 1000", 8}, {"gid 4", -1}};
  CarriedWorker& worker = state.workers.emplace_back();
  worker.pid = 4711;
  worker.since = 123'456'789'012;
  worker.line = "half a line";
  worker.kill_at = 5;
  worker.start = std::string("bytes\0and more", 14);
  worker.attempts = {1, 3};
  worker.identity.uid = 1000;
  worker.identity.user = "ada";
  worker.identity.groups = {4, 5};
  worker.identity.roles = Role::kSession;
  worker.identity.roles->add(Role::kOperator);
  worker.park_by = worker.identity;
  worker.park_room_for = -1;
  worker.is_preempted = true;
  CarriedPermit& permit = worker.permit.emplace();
  permit.places = {{"", {}}, {"uid 1000", 2}};
  permit.allowances = {{.of = "user ada", .device_memory = 1 << 30, .slot = 2}};
  permit.limits.priorities = 0;
  state.leases = "a line for each lease";
  state.lease_totals.leases.emplace_back().id = "1a2b3c4d";
  state.tickets.emplace_back().user.user = "bob";
  state.drain_until = 77;
  return state;
}

TEST(CarriedStateTest, ItIsReadAsItWasWritten) {
  const CarriedState state = example();
  Result<UniqueFd> file = write_carried(state);
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(::fcntl(file->get(), F_GETFD), 0) << "it would be closed";
  EXPECT_LT(::write(file->get(), "x", 1), 0) << "it is sealed";
  const Result<CarriedState> read = read_carried(file->get());
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(wire::encode(*read), wire::encode(state));
  ASSERT_EQ(read->workers.size(), 1u);
  const CarriedWorker& worker = read->workers.front();
  EXPECT_EQ(worker.start, state.workers.front().start);
  EXPECT_EQ(worker.identity.roles, state.workers.front().identity.roles);
  EXPECT_EQ(worker.park_by->user, "ada");
  EXPECT_EQ(worker.park_room_for, -1);
  EXPECT_TRUE(worker.is_preempted);
  EXPECT_EQ(worker.permit->places[0].slot, std::nullopt);
  EXPECT_EQ(worker.permit->places[1].slot, 2u);
  EXPECT_EQ(worker.permit->limits.priorities, 0u);
}

TEST(CarriedStateTest, AnotherLayoutIsRefused) {
  const UniqueFd file(::memfd_create("test", MFD_CLOEXEC));
  EXPECT_EQ(read_carried(file.get()).status().code(), Code::kUnsupported);
  const std::string other = "a hash of other fields";
  ASSERT_EQ(::write(file.get(), other.data(), other.size()), static_cast<ssize_t>(other.size()));
  EXPECT_EQ(read_carried(file.get()).status().code(), Code::kUnsupported);
}

TEST(CarriedStateTest, OnlyDescriptorsThatAreThereStayOpen) {
  CarriedState state;
  state.closer = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  set_close_on_exec(state, false);
  EXPECT_EQ(::fcntl(state.closer, F_GETFD), 0);
  set_close_on_exec(state, true);
  EXPECT_EQ(::fcntl(state.closer, F_GETFD), FD_CLOEXEC);
  ::close(state.closer);
}

TEST(CarriedStateTest, TheLayoutIsThatOfTheBuild) {
  const std::string& layout = wire::Codec<CarriedState>::layout();
  for (const char* part : {"slot:", "attempts:", "identity:", "LeaseAnswer{"}) {
    EXPECT_NE(layout.find(part), std::string::npos) << part;
  }
}

}  // namespace
}  // namespace rcuda::server
