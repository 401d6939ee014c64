// The pool without a daemon, with real workers on softgpu or with other programs in their place.
#include "server/daemon/pool/worker_pool.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/reach/protocol_hash.h"
#include "server/protocol/worker_messages.h"
#include "tests/support/temp_folder.h"

namespace rcuda::server {
namespace {

using Clock = WorkerPool::Clock;

struct PoolSettings : Settings {
  PoolSettings(const char* pool_size, const char* binary) {
    EXPECT_TRUE(pool.set(pool_size, "pool", "the test").ok());
    EXPECT_TRUE(driver.set("softgpu", "driver", "the test").ok());
    worker_binary = binary;
  }
};

wire::Hello hello() {
  wire::Hello message;
  message.protocol_hash = wire::protocol_hash();
  message.medium = "shm";
  message.devices = {0};
  return message;
}

Identity our_user() {
  Identity identity;
  identity.uid = ::geteuid();
  identity.gid = ::getegid();
  identity.user = "tester";
  identity.method = "local socket";
  return identity;
}

// Serves the pool until `done` returns true, as the daemon does while no client connects.
void run_until(WorkerPool& pool, const std::function<bool()>& done) {
  const Clock::time_point end = Clock::now() + std::chrono::seconds(60);
  while (!done()) {
    ASSERT_LT(Clock::now(), end);
    std::vector<pollfd> items;
    pool.add_descriptors(&items);
    ASSERT_GE(::poll(items.data(), items.size(), 10), 0);
    pool.handle(items);
  }
}

// Begins a session. Returns the client's end.
UniqueFd begin_session(WorkerPool& pool, std::unique_ptr<Admission::Permit> permit = nullptr) {
  int ends[2] = {-1, -1};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  UniqueFd ours(ends[0]), theirs(ends[1]);
  const Result<bool> assigned = pool.assign(hello(), our_user(), {}, 0, &theirs, &permit);
  EXPECT_TRUE(assigned.ok() && *assigned);
  return ours;
}

uint32_t idle(const WorkerPool& pool) {
  wire::ServerStatus status;
  pool.report(&status, {our_user(), true});
  return status.idle_workers;
}

TEST(WorkerPoolTest, WorkersThatEndWithoutAWordAreRetriedWithGrowingPauses) {
  const PoolSettings settings("4", "/bin/false");
  WorkerPool pool(settings, Bases("node0", 0));
  Clock::duration last{};
  for (int round = 0; round < 2; ++round) {
    while (pool.starting() == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      pool.refill({});
    }
    run_until(pool, [&] { return pool.starting() == 0; });
    ASSERT_NE(pool.next_deadline(), Clock::time_point::max()) << "no pause in round " << round;
    const Clock::duration pause = pool.next_deadline() - Clock::now();
    EXPECT_GT(pause, last);
    last = pause;
    pool.refill({});
    EXPECT_EQ(pool.starting(), 0u);
  }
}

// A crash may have a temporary cause, and workers that start at the same time may share it. So only
// a later worker's crash makes the failure lasting.
TEST(WorkerPoolTest, ACrashLastsIfTheNextWorkerCrashesToo) {
  const PoolSettings settings("2", "/bin/false");
  WorkerPool pool(settings, Bases("node0", 0));
  const wire::Hello message = hello();
  const WorkerPool::Waiting client{&message};
  for (const bool lasts : {false, true}) {
    while (pool.starting() == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      pool.refill({});
    }
    run_until(pool, [&] { return pool.starting() == 0; });
    EXPECT_EQ(pool.lasting_failure(client).ok(), !lasts) << pool.last_failure().context();
  }
}

TEST(WorkerPoolTest, ClientsDoNotWaitWhileAReasonLasts) {
  const test::TempFolder folder;
  const std::string binary = folder.file("rcuda-server");
  const PoolSettings settings("0", binary.c_str());
  WorkerPool pool(settings, Bases("node0", 0));
  const wire::Hello message = hello();
  const WorkerPool::Waiting client{&message};
  EXPECT_TRUE(pool.lasting_failure(client).ok()) << "nothing has been tried";
  pool.refill({client});
  const Status why = pool.lasting_failure(client);
  EXPECT_NE(why.context().find(binary), std::string::npos) << why.context();
  // The binary is installed now. The pool tries again after its pause.
  ASSERT_EQ(::symlink(RCUDA_TEST_SERVER, binary.c_str()), 0);
  while (pool.starting() == 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    pool.refill({client});
  }
  EXPECT_TRUE(pool.lasting_failure(client).ok()) << "one starts";
  run_until(pool, [&] { return pool.starting() == 0; });
  EXPECT_TRUE(pool.has_worker_for(client)) << pool.last_failure().message();
  EXPECT_TRUE(pool.lasting_failure(client).ok());
}

TEST(WorkerPoolTest, AWorkerSaysWhetherItsReasonLasts) {
  PoolSettings settings("1", RCUDA_TEST_SERVER);
  ASSERT_TRUE(settings.driver.set("/nowhere/libcuda.so.1", "driver", "the test").ok());
  WorkerPool pool(settings, Bases("node0", 0));
  const wire::Hello message = hello();
  const WorkerPool::Waiting client{&message};
  pool.refill({});
  // The worker reports the reason before it ends. The reason holds for the pause that then begins.
  run_until(pool, [&] { return !pool.last_failure().ok(); });
  const Status why = pool.lasting_failure(client);
  EXPECT_NE(why.context().find("/nowhere/libcuda.so.1"), std::string::npos) << why.context();
}

// A driver may need more addresses than the base has. So after a failure the next worker gets a
// larger base.
TEST(WorkerPoolTest, AWorkerThatDidNotStartIsFollowedByOneWithALargerBase) {
  const std::string path = ::testing::TempDir() + "/rcuda-failing-" + std::to_string(::getpid());
  const std::string bases = path + "-bases";
  std::ofstream(path) << "#!/bin/sh\necho $2 >> " << bases << "\nexit 1\n";
  ASSERT_EQ(::chmod(path.c_str(), 0700), 0);
  const PoolSettings settings("2", path.c_str());
  WorkerPool pool(settings, Bases("node3", 0));
  for (int round = 0; round < 3; ++round) {
    while (pool.starting() == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      pool.refill({});
    }
    run_until(pool, [&] { return pool.starting() == 0; });
  }
  std::vector<uint32_t> doublings;
  std::ifstream numbers(bases);
  for (uint32_t number = 0; numbers >> number;) {
    doublings.push_back(Base::from_number(number).doublings);
  }
  ASSERT_EQ(doublings.size(), 6u);
  for (size_t i = 2; i < 6; ++i) EXPECT_EQ(doublings[i], doublings[i - 2] + 1);
  ::unlink(path.c_str());
  ::unlink(bases.c_str());
}

// A driver gets its compute share at its start, so an idle worker without the share is not
// suitable.
TEST(WorkerPoolTest, ASessionWithAComputeShareGetsAWorkerOfItsOwn) {
  const PoolSettings settings("1", RCUDA_TEST_SERVER);
  WorkerPool pool(settings, Bases("node0", 0));
  const wire::Hello message = hello();
  const WorkerPool::Waiting whole{&message}, quarter{&message, 25}, half{&message, 50};
  pool.refill({});
  run_until(pool, [&] { return pool.starting() == 0; });
  EXPECT_TRUE(pool.has_worker_for(whole));
  EXPECT_FALSE(pool.has_worker_for(quarter));
  pool.refill({quarter});
  EXPECT_EQ(pool.starting(), 1u);
  run_until(pool, [&] { return pool.starting() == 0; });
  EXPECT_TRUE(pool.has_worker_for(quarter));
  EXPECT_FALSE(pool.has_worker_for(half));
  EXPECT_TRUE(pool.has_worker_for(whole)) << "the idle worker stays";
  pool.refill({});
  EXPECT_FALSE(pool.has_worker_for(quarter)) << "none is kept with a share";
}

TEST(WorkerPoolTest, WhatClientsThatLeftWaitedForIsNotKept) {
  const PoolSettings settings("1", RCUDA_TEST_SERVER);
  WorkerPool pool(settings, Bases("node0", 0));
  const wire::Hello message = hello();
  const std::vector<WorkerPool::Waiting> waiting(4, {&message});
  pool.refill(waiting);
  ASSERT_EQ(pool.starting(), 4u);
  run_until(pool, [&] { return pool.starting() == 0; });
  pool.refill(waiting);
  EXPECT_EQ(idle(pool), 4u) << "these wait still";
  run_until(pool, [&] { return pool.starting() == 0; });
  pool.refill({});
  EXPECT_EQ(idle(pool), 1u);
  EXPECT_TRUE(pool.last_failure().ok());
}

TEST(WorkerPoolTest, AfterManySessionsAtOnceAsManyWorkersAreKeptReady) {
  PoolSettings settings("1", RCUDA_TEST_SERVER);
  ASSERT_TRUE(settings.pool_most.set("3", "most", "the test").ok());
  ASSERT_TRUE(settings.pool_time.set("10min", "time", "the test").ok());
  WorkerPool pool(settings, Bases("node0", 0));
  const wire::Hello message = hello();
  const std::vector<WorkerPool::Waiting> waiting(5, {&message});
  run_until(pool, [&] {
    pool.refill(waiting);
    return idle(pool) == 5;
  });
  std::vector<UniqueFd> clients;
  for (int i = 0; i < 4; ++i) clients.push_back(begin_session(pool));
  clients.clear();
  run_until(pool, [&] { return pool.sessions() == 0; });
  clients.push_back(begin_session(pool));
  pool.refill({});
  EXPECT_EQ(pool.starting(), 0u) << "they would hold up the session that has just begun";
  clients.clear();
  run_until(pool, [&] { return pool.sessions() == 0; });
  pool.refill({});
  EXPECT_EQ(pool.starting(), 3u);
  EXPECT_NE(pool.next_deadline(), Clock::time_point::max());
}

// The start of a worker delays work on the GPU, most of all a program that begins. So it waits
// until a session is over.
TEST(WorkerPoolTest, ATakenWorkerIsReplacedWhenItsSessionIsOver) {
  const PoolSettings settings("2", RCUDA_TEST_SERVER);
  WorkerPool pool(settings, Bases("node0", 0));
  pool.refill({});
  run_until(pool, [&] { return idle(pool) == 2; });
  UniqueFd client = begin_session(pool);
  pool.refill({});
  EXPECT_EQ(pool.starting(), 0u);
  client.reset();
  run_until(pool, [&] { return pool.sessions() == 0; });
  pool.refill({});
  EXPECT_EQ(pool.starting(), 1u);
}

TEST(WorkerPoolTest, ATakenWorkerIsReplacedBesideASessionThatGoesOn) {
  const PoolSettings settings("1", RCUDA_TEST_SERVER);
  WorkerPool pool(settings, Bases("node0", 0));
  pool.refill({});
  run_until(pool, [&] { return idle(pool) == 1; });
  const UniqueFd client = begin_session(pool);
  const Clock::time_point begin = Clock::now();
  pool.refill({});
  EXPECT_EQ(pool.starting(), 0u);
  pool.handle({});  // checks the session's limits (there are none)
  const Clock::time_point due = pool.next_deadline();
  EXPECT_LE(due, begin + PoolDemand::kYoung);
  std::this_thread::sleep_until(due);
  pool.refill({});
  EXPECT_EQ(pool.starting(), 1u);
  EXPECT_EQ(pool.sessions(), 1u);
}

TEST(WorkerPoolTest, AClientThatWaitsGetsAWorkerBesideASessionThatHasJustBegun) {
  const PoolSettings settings("1", RCUDA_TEST_SERVER);
  WorkerPool pool(settings, Bases("node0", 0));
  pool.refill({});
  run_until(pool, [&] { return idle(pool) == 1; });
  const UniqueFd client = begin_session(pool);
  const wire::Hello message = hello();
  pool.refill({{&message}});
  EXPECT_EQ(pool.starting(), 1u) << "one for the client, and none for the pool beside it";
}

// No session will use them, and after an upgrade of the package their build would be outdated.
TEST(WorkerPoolTest, APoolThatDrainsHasNoIdleWorkers) {
  const PoolSettings settings("2", RCUDA_TEST_SERVER);
  WorkerPool pool(settings, Bases("node0", 0));
  pool.refill({}, true);
  EXPECT_EQ(pool.starting(), 0u);
  pool.refill({});
  EXPECT_EQ(pool.starting(), 2u);
  run_until(pool, [&] { return idle(pool) == 2; });
  pool.refill({}, true);
  EXPECT_EQ(idle(pool), 0u);
}

// Descriptors of other parts of the daemon, anywhere in the list, are not taken for a worker's.
TEST(WorkerPoolTest, OnlyTheDescriptorsThatAreReadyAreHandled) {
  const PoolSettings settings("1", "/bin/false");
  WorkerPool pool(settings, Bases("node0", 0));
  pool.refill({});
  ASSERT_EQ(pool.starting(), 1u);
  std::vector<pollfd> items;
  pool.add_descriptors(&items);
  ASSERT_GT(::poll(items.data(), items.size(), 60'000), 0);
  std::vector<pollfd> others = {{-1, POLLIN, POLLIN}, {items.back().fd + 1, POLLIN, POLLIN}};
  for (const pollfd& item : items) others.push_back({item.fd, POLLIN, 0});
  pool.handle(others);
  EXPECT_EQ(pool.starting(), 1u);
  run_until(pool, [&] { return pool.starting() == 0; });
}

// A worker that is stuck in its driver may survive even SIGKILL for a while.
TEST(WorkerPoolTest, AWorkerThatHangsInItsStartIsReplacedBeforeItEnds) {
  const std::string path = ::testing::TempDir() + "/rcuda-hanging-" + std::to_string(::getpid());
  std::ofstream(path) << "#!/bin/sh\nexec sleep 1000\n";
  ASSERT_EQ(::chmod(path.c_str(), 0700), 0);
  PoolSettings settings("1", path.c_str());
  ASSERT_TRUE(settings.start_timeout.set("50ms", "start timeout", "the test").ok());
  ASSERT_TRUE(settings.stop_timeout.set("50ms", "stop timeout", "the test").ok());
  WorkerPool pool(settings, Bases("node0", 0));
  pool.refill({});
  ASSERT_EQ(pool.starting(), 1u);
  // Without descriptors, the pool does not notice that a worker has ended.
  while (pool.last_failure().ok()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    pool.handle({});
  }
  EXPECT_EQ(pool.starting(), 0u);
  const wire::Hello message = hello();
  EXPECT_TRUE(pool.lasting_failure({&message}).ok()) << "the next one may start";
  while (pool.starting() == 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    pool.refill({});
  }
  ::unlink(path.c_str());
}

// A worker that survives both the request to stop and SIGKILL. The server ends without it.
TEST(WorkerPoolTest, AWorkerThatCannotBeKilledIsLeftBehind) {
  PoolSettings settings("1", RCUDA_TEST_HELD_WORKER);
  ASSERT_TRUE(settings.stop_timeout.set("50ms", "stop timeout", "the test").ok());
  WorkerPool pool(settings, Bases("node0", 0));
  pool.refill({});
  run_until(pool, [&] { return pool.starting() == 0; });
  ASSERT_EQ(idle(pool), 1u) << pool.last_failure().message() << " (ptrace is not allowed here?)";
  pool.shutdown();
  EXPECT_EQ(idle(pool), 0u);
}

// The memory that the pool shares with the workers of its sessions.
std::vector<WorkPage> work_pages() {
  std::vector<WorkPage> pages;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const std::string name = std::filesystem::read_symlink(entry, error).string();
    if (name.find("rcuda-work") == std::string::npos) continue;
    Result<WorkPage> page =
        WorkPage::open(UniqueFd(::dup(std::stoi(entry.path().filename().string()))));
    if (page.ok()) pages.push_back(std::move(*page));
  }
  return pages;
}

// Sends connections to the first worker until its socket is full. The worker does not take them.
void fill_socket(WorkerPool& pool) {
  wire::PeerHello peer;
  wire::session_name(hello().session, peer.session);
  UniqueFd socket(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  ASSERT_TRUE(pool.pass_on(peer, 0, &socket));
  do {
    socket.reset(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  } while (pool.pass_on(peer, 0, &socket));
}

// Reads the messages that wait for a worker. Adds the tags of RanksLost to `tags`.
void read_lost(int control, std::vector<uint64_t>* tags) {
  pollfd item{control, POLLIN, 0};
  while (::poll(&item, 1, 0) > 0) {
    const Result<ToWorker> message = receive_from_daemon(control);  // connections may be invalid
    const auto* const lost = std::get_if<RanksLost>(message.ok() ? &*message : nullptr);
    if (lost) tags->insert(tags->end(), lost->tags.begin(), lost->tags.end());
  }
}

TEST(WorkerPoolTest, AWorkerThatReadsTooSlowlyLearnsOfLostRanksLater) {
  PoolSettings settings("2", RCUDA_TEST_HELD_WORKER);
  ASSERT_TRUE(settings.stop_timeout.set("50ms", "stop timeout", "the test").ok());
  WorkerPool pool(settings, Bases("node0", 0));
  pool.refill({});
  run_until(pool, [&] { return pool.starting() == 0; });
  ASSERT_EQ(idle(pool), 2u);
  const UniqueFd clients[] = {begin_session(pool), begin_session(pool)};
  wire::ServerStatus status;
  pool.report(&status, {our_user(), true});
  ASSERT_EQ(status.sessions.size(), 2u);
  std::vector<WorkPage> pages = work_pages();
  ASSERT_EQ(pages.size(), 2u);
  for (WorkPage& page : pages) page.join(77);
  fill_socket(pool);
  const UniqueFd process(
      static_cast<int>(::syscall(SYS_pidfd_open, status.sessions[0].worker_pid, 0)));
  const UniqueFd control(static_cast<int>(::syscall(SYS_pidfd_getfd, process.get(), 3, 0)));
  ASSERT_GE(control.get(), 0);
  ASSERT_EQ(::kill(static_cast<pid_t>(status.sessions[1].worker_pid), SIGKILL), 0);
  run_until(pool, [&] { return pool.sessions() == 1; });
  std::vector<uint64_t> tags;
  run_until(pool, [&] {
    read_lost(control.get(), &tags);
    return !tags.empty();
  });
  EXPECT_EQ(tags, std::vector<uint64_t>{77});
}

// Both if the worker ends and if it survives SIGKILL.
TEST(WorkerPoolTest, ASessionThatRunsWhenTheServerStopsIsInTheAudit) {
  struct Case {
    const char* worker;
    const char* end;
  };
  for (const Case& one : {Case{RCUDA_TEST_SERVER, "\"event\":\"session\""},
                          Case{RCUDA_TEST_HELD_WORKER, "a debugger holds its process"}}) {
    const test::TempFolder folder;
    Audit audit;
    ASSERT_TRUE(audit.open(folder.file("audit")).ok());
    PoolSettings settings("1", one.worker);
    ASSERT_TRUE(settings.stop_timeout.set("50ms", "stop timeout", "the test").ok());
    WorkerPool pool(settings, Bases("node0", 0));
    pool.record_in(&audit);
    pool.refill({});
    run_until(pool, [&] { return pool.starting() == 0; });
    const UniqueFd client = begin_session(pool);
    pool.shutdown();
    const std::string text = folder.read("audit");
    EXPECT_NE(text.find(one.end), std::string::npos) << text;
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2) << text;
    EXPECT_NE(text.find(R"("event":"begin")"), std::string::npos) << text;
    wire::ServerStatus status;
    pool.report(&status, {our_user(), true});
    EXPECT_EQ(status.totals.users.size(), 1u);
  }
}

// Acts as a worker that has been taken over: it sends descriptors to the daemon, and checks which
// of the daemon's files it has.
constexpr const char* kTakenOver = R"(#!/usr/bin/env python3
import array, os, socket
control, passed = socket.socket(fileno=3), array.array("i", [0])
try:
    control.sendmsg([b"x" * 24], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, passed)])
    said = "sent"
except OSError as error:
    said = error.strerror
files = [os.readlink(f"/proc/self/fd/{number}") for number in range(5)]
same = [name for name in files if name == os.readlink(f"/proc/{os.getppid()}/fd/2")]
print(f"{said}, {len(same)} of the daemon's", flush=True)
)";

TEST(WorkerPoolTest, AWorkerCanSendNoDescriptorAndHasNoLogOfTheDaemon) {
  const test::TempFolder folder;
  const std::string binary = folder.write("worker", kTakenOver, 0755);
  // The daemon's stderr is a file, which the worker must not have.
  const UniqueFd before(::dup(STDERR_FILENO));
  ASSERT_TRUE(set_log_file(folder.file("log").c_str()));
  const UniqueFd log(::open(folder.file("stderr").c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
  ASSERT_GE(::dup2(log.get(), STDERR_FILENO), 0);
  {
    const PoolSettings settings("1", binary.c_str());
    WorkerPool pool(settings, Bases("node0", 0));
    pool.refill({});
    run_until(pool, [&] { return pool.starting() == 0; });
  }
  ::dup2(before.get(), STDERR_FILENO);
  set_log_descriptor(STDERR_FILENO);
  const std::string text = folder.read("log");
  EXPECT_NE(text.find("info: Broken pipe, 0 of the daemon's\n"), std::string::npos) << text;
}

// Without a cgroup. The process that the worker leaves behind has left the worker's process group
// and session.
TEST(WorkerPoolTest, WhatAWorkerLeavesBehindIsEnded) {
  const test::TempFolder folder;
  const std::string binary = folder.write(
      "worker",
      "#!/bin/sh\nsetsid sh -c 'sleep 1000 & echo $! > \"$0\"; wait' " + folder.file("left") +
          " &\nwhile ! [ -s " + folder.file("left") + " ]; do sleep 0.01; done\nexit 1\n",
      0755);
  const PoolSettings settings("1", binary.c_str());
  WorkerPool pool(settings, Bases("node0", 0));
  pool.adopt_orphans([](pid_t) { return false; });
  pool.refill({});
  run_until(pool, [&] { return pool.starting() == 0; });
  const auto left = static_cast<pid_t>(std::stoi(folder.read("left")));
  run_until(pool, [&] { return ::kill(left, 0) != 0; });
  ::prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0);
}

// The end of a traced process is reported to its debugger first. Until the daemon can reap the
// worker, it continues with other work and polls.
TEST(WorkerPoolTest, ATracedWorkerThatEndedHoldsNobody) {
  const test::TempFolder folder;
  Audit audit;
  ASSERT_TRUE(audit.open(folder.file("audit")).ok());
  Admission admission(1);
  PoolSettings settings("1", RCUDA_TEST_HELD_WORKER);
  ASSERT_TRUE(settings.stop_timeout.set("50ms", "stop timeout", "the test").ok());
  WorkerPool pool(settings, Bases("node0", 0));
  pool.record_in(&audit);
  pool.refill({});
  run_until(pool, [&] { return pool.starting() == 0; });
  ASSERT_EQ(idle(pool), 1u) << pool.last_failure().message() << " (ptrace is not allowed here?)";
  const UniqueFd client =
      begin_session(pool, (*admission.apply(our_user(), {0}, false))->take().value());
  wire::ServerStatus status;
  pool.report(&status, {our_user(), true});
  ASSERT_EQ(status.sessions.size(), 1u);
  ASSERT_EQ(::kill(static_cast<pid_t>(status.sessions[0].worker_pid), SIGKILL), 0);
  run_until(pool, [&] { return pool.sessions() == 0; });
  EXPECT_NE(folder.read("audit").find("a debugger holds its process"), std::string::npos);
  EXPECT_TRUE(admission.apply(our_user(), {0}, false).ok()) << "its place is free";
  // Its descriptor stays readable, so it is no longer polled.
  std::vector<pollfd> items;
  pool.add_descriptors(&items);
  EXPECT_TRUE(items.empty());
  EXPECT_NE(pool.next_deadline(), Clock::time_point::max());
  pool.refill({});
  EXPECT_EQ(pool.starting(), 1u) << "another worker takes its place";
}

}  // namespace
}  // namespace rcuda::server
