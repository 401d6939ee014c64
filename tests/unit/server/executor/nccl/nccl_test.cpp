// Which calls of NCCL a worker makes, on which threads, and which it refuses.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <latch>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "common/nccl/nccl_variables.h"
#include "server/executor/nccl/batch.h"
#include "server/executor/nccl/callers.h"

namespace rcuda::server {
namespace {

using nccl::Verb;

std::vector<std::string>& calls() {
  static std::vector<std::string> made;
  return made;
}
void record(const char* name) {
  static Mutex mutex;
  MutexLock lock(mutex);
  calls().push_back(name);
}
std::atomic<int> polls_left{0};
std::atomic<bool> never_ends{false};
// While set, operations and ends of groups wait until a communicator is revoked or aborted.
std::atomic<bool> hangs{false}, is_hanging{false};
std::function<void()> in_init = [] {};
int communicator_there = 0, child_there = 0;
void** child_place = nullptr;

int hang() {
  if (!hangs) return nccl::kSuccess;
  is_hanging = true;
  while (hangs) std::this_thread::yield();
  is_hanging = false;
  return nccl::kInternalError;
}

// A library that records its calls.
nccl::Functions library() {
  nccl::Functions functions;
  functions.ncclGroupStart = [] {
    record("start");
    return int{nccl::kSuccess};
  };
  functions.ncclGroupEnd = [] {
    record("end");
    if (const int result = hang(); result != nccl::kSuccess) return result;
    return int{polls_left > 0 ? nccl::kInProgress : nccl::kSuccess};
  };
  functions.ncclAllReduce = [](const void*, void*, size_t, int, int, void*, void*) {
    record("all-reduce");
    return hang();
  };
  // NCCL stores the handle of a split when the split has ended.
  functions.ncclCommSplit = [](void*, int, int, void** comm, nccl::Config*) {
    record("split");
    child_place = comm;
    return int{nccl::kSuccess};
  };
  functions.ncclCommShrink = [](void* parent, int*, int, void** comm, nccl::Config*, int) {
    record(parent ? "shrink" : "shrink of null");
    *comm = &child_there;
    return int{nccl::kSuccess};
  };
  functions.ncclRedOpDestroy = [](int, void* comm) {
    record(comm ? "destroy operation" : "destroy operation of null");
    const int result = hang();
    record("destroyed operation");
    return result;
  };
  functions.ncclCommRevoke = [](void*, int) {
    record("revoke");
    hangs = false;
    return int{nccl::kSuccess};
  };
  functions.ncclCommInitRankConfig = [](void** comm, int, nccl::UniqueId, int, nccl::Config*) {
    record("init");
    in_init();
    *comm = &communicator_there;
    return int{nccl::kSuccess};
  };
  functions.ncclCommGetAsyncError = [](void*, int* error) {
    *error = never_ends || polls_left-- > 1 ? nccl::kInProgress : nccl::kSuccess;
    if (*error == nccl::kSuccess && child_place)
      *std::exchange(child_place, nullptr) = &child_there;
    return int{nccl::kSuccess};
  };
  functions.ncclCommCount = [](void*, int* count) {
    *count = 4;
    return int{nccl::kSuccess};
  };
  functions.ncclCommUserRank = [](void*, int* rank) {
    *rank = 3;
    return int{nccl::kSuccess};
  };
  functions.ncclCommDeregister = [](void*, void*) {
    record("deregister");
    return int{nccl::kSuccess};
  };
  functions.ncclCommDestroy = [](void*) {
    record("destroy");
    return int{nccl::kSuccess};
  };
  functions.ncclCommAbort = [](void*) {
    record("abort");
    hangs = false;
    return int{nccl::kSuccess};
  };
  return functions;
}

api::DriverTable driver() {
  api::DriverTable table{};
  table.cuCtxSetCurrent = [](CUcontext) { return CUDA_SUCCESS; };
  return table;
}

NcclStep step(Verb verb, std::shared_ptr<NcclCommunicator> communicator) {
  NcclStep made;
  made.call.verb = verb;
  made.communicator = std::move(communicator);
  return made;
}

std::shared_ptr<NcclCommunicator> communicator(bool blocking = true) {
  auto made = std::make_shared<NcclCommunicator>();
  made->handle = &communicator_there;
  made->blocking = blocking;
  return made;
}

nccl::ResultCode run(NcclBatch& batch) {
  calls().clear();
  static const api::DriverTable table = driver();
  return make(library(), table, batch);
}

TEST(NcclBatchTest, NothingIsCalledIfTheLibraryLacksAFunction) {
  NcclBatch batch;
  batch.grouping = nccl::Grouping::kGroup;
  batch.steps.push_back(step(Verb::kAllReduce, communicator()));
  batch.steps.push_back(step(Verb::kSend, communicator()));
  EXPECT_EQ(run(batch), nccl::kInvalidUsage);
  EXPECT_NE(batch.refusal.find("ncclSend"), std::string::npos);
  EXPECT_TRUE(calls().empty());
}

TEST(NcclBatchTest, AConfigurationNeedsItsOwnFunction) {
  NcclBatch batch;
  batch.steps.push_back(step(Verb::kAllReduce, communicator()));
  batch.steps.front().has_operation_config = true;
  EXPECT_EQ(run(batch), nccl::kInvalidUsage);
}

TEST(NcclBatchTest, ASingleOperationIsNotAGroup) {
  NcclBatch batch;
  batch.steps.push_back(step(Verb::kAllReduce, communicator()));
  EXPECT_EQ(run(batch), nccl::kSuccess);
  EXPECT_EQ(calls(), std::vector<std::string>{"all-reduce"});
}

// Another thread must be able to abort a new communicator while the group waits for other ranks.
TEST(NcclBatchTest, ANewCommunicatorIsKnownBeforeTheGroupEnds) {
  NcclBatch batch;
  batch.steps.push_back(step(Verb::kInit, nullptr));
  batch.steps.front().ids.emplace_back();
  batch.steps.front().created = std::make_shared<NcclCommunicator>();
  EXPECT_EQ(run(batch), nccl::kSuccess);
  EXPECT_EQ(calls(), (std::vector<std::string>{"start", "init", "end"}));
  EXPECT_EQ(batch.steps.front().created->handle.load(), &communicator_there);
  EXPECT_EQ(batch.steps.front().answer.ranks, 4);
  EXPECT_EQ(batch.steps.front().answer.rank, 3);
}

TEST(NcclBatchTest, ANonBlockingCommunicatorIsWaitedFor) {
  NcclBatch batch;
  batch.grouping = nccl::Grouping::kGroup;
  batch.steps.push_back(step(Verb::kAllReduce, communicator(false)));
  polls_left = 3;
  EXPECT_EQ(run(batch), nccl::kSuccess);
  EXPECT_LE(polls_left.load(), 0);
  polls_left = 0;
}

TEST(NcclBatchTest, AnAbortEndsAWait) {
  const auto waited = communicator(false);
  NcclBatch batch;
  batch.grouping = nccl::Grouping::kGroup;
  batch.steps.push_back(step(Verb::kAllReduce, waited));
  polls_left = 1;
  never_ends = true;
  NcclCallers callers(1);
  std::latch ended(1);
  std::atomic<int> result{-1};
  ASSERT_TRUE(callers.start(false, [&] {
    static const api::DriverTable table = driver();
    result = make(library(), table, batch);
    ended.count_down();
  }));
  while (waited->users.load() == 0) std::this_thread::yield();
  NcclBatch end;
  end.steps.push_back(step(Verb::kAbort, waited));
  EXPECT_EQ(run(end), nccl::kSuccess);
  ended.wait();
  EXPECT_EQ(result.load(), nccl::kInternalError);
  EXPECT_EQ(calls().back(), "abort");
  EXPECT_EQ(waited->handle.load(), nullptr);
  never_ends = false;
  polls_left = 0;
}

// Calls of a lost communicator could wait for the lost rank without end, so only its end is called.
TEST(NcclBatchTest, ALostCommunicatorIsOnlyEnded) {
  const auto lost = communicator();
  lost->is_lost = true;
  NcclBatch batch;
  batch.steps.push_back(step(Verb::kAllReduce, lost));
  EXPECT_EQ(run(batch), nccl::kRemoteError);
  EXPECT_TRUE(calls().empty());
  NcclBatch end;
  end.steps.push_back(step(Verb::kDestroy, lost));
  EXPECT_EQ(run(end), nccl::kSuccess);
  EXPECT_EQ(calls(), std::vector<std::string>{"abort"});
}

// With the null handle of an ended communicator, NVIDIA's library would read address 0.
TEST(NcclBatchTest, NoCallGetsTheHandleOfACommunicatorThatHasEnded) {
  for (const Verb verb :
       {Verb::kShrink, Verb::kDestroyOperation, Verb::kAllReduce, Verb::kRevoke}) {
    const auto ended = communicator();
    ended->handle = nullptr;
    NcclBatch batch;
    batch.steps.push_back(step(verb, ended));
    if (nccl::creates(verb)) batch.steps.front().created = std::make_shared<NcclCommunicator>();
    EXPECT_EQ(run(batch), nccl::kInvalidArgument) << static_cast<int>(verb);
    ended->is_lost = true;
    EXPECT_EQ(run(batch), nccl::kRemoteError) << static_cast<int>(verb);
    batch.steps.front().communicator = nullptr;  // as if the client named an unknown id
    EXPECT_EQ(run(batch), nccl::kInvalidArgument) << static_cast<int>(verb);
    EXPECT_TRUE(calls().empty()) << static_cast<int>(verb);
  }
}

TEST(NcclBatchTest, ALostCommunicatorCanBeShrunk) {
  const auto lost = communicator();
  lost->is_lost = true;
  NcclBatch batch;
  batch.steps.push_back(step(Verb::kShrink, lost));
  batch.steps.front().created = std::make_shared<NcclCommunicator>();
  EXPECT_EQ(run(batch), nccl::kSuccess);
  EXPECT_EQ(batch.steps.front().answer.ranks, 4);
}

// Makes the batch's calls on another thread, where they hang. Then loses the batch's communicators.
nccl::ResultCode lose_while_made(const nccl::Functions& functions, NcclBatch& batch) {
  static const api::DriverTable table = driver();
  calls().clear();
  hangs = true;
  nccl::ResultCode result = nccl::kSuccess;
  std::thread makes([&] {
    result = make(functions, table, batch);
    batch.is_made = true;
  });
  while (!is_hanging) std::this_thread::yield();
  for (const NcclStep& one : batch.steps) {
    (one.created ? one.created : one.communicator)->is_lost = true;
  }
  end_wait(functions, table, batch);
  makes.join();
  return result;
}

TEST(NcclBatchTest, ACallThatWaitsForALostRankIsRevoked) {
  const auto lost = communicator();
  NcclBatch batch;
  batch.steps.push_back(step(Verb::kAllReduce, lost));
  EXPECT_EQ(lose_while_made(library(), batch), nccl::kRemoteError);
  EXPECT_EQ(calls(), (std::vector<std::string>{"all-reduce", "revoke"}));
  EXPECT_EQ(lost->handle.load(), &communicator_there);  // the program can shrink it
  // NCCL refuses to revoke it again.
  NcclBatch again;
  again.steps.push_back(step(Verb::kRevoke, lost));
  EXPECT_EQ(run(again), nccl::kSuccess);
  EXPECT_TRUE(calls().empty());
}

TEST(NcclBatchTest, ACallThatWaitsForALostRankIsAbortedIfNcclCannotRevokeIt) {
  nccl::Functions old = library();
  old.ncclCommRevoke = nullptr;
  const auto lost = communicator();
  NcclBatch batch;
  batch.steps.push_back(step(Verb::kAllReduce, lost));
  EXPECT_EQ(lose_while_made(old, batch), nccl::kRemoteError);
  EXPECT_EQ(calls(), (std::vector<std::string>{"all-reduce", "abort"}));
  EXPECT_EQ(lost->handle.load(), nullptr);
}

// The parent is already lost. The new communicator has no handle yet, so only the parent can be
// aborted.
TEST(NcclBatchTest, ASplitThatWaitsForALostRankEndsWithItsParent) {
  nccl::Functions old = library();
  old.ncclCommRevoke = nullptr;
  const auto parent = communicator();
  NcclBatch batch;
  batch.steps.push_back(step(Verb::kSplit, parent));
  batch.steps.front().created = std::make_shared<NcclCommunicator>();
  EXPECT_EQ(lose_while_made(old, batch), nccl::kRemoteError);
  EXPECT_EQ(std::ranges::count(calls(), "abort"), 1);
  EXPECT_EQ(parent->handle.load(), nullptr);
  child_place = nullptr;
}

// Without this wait, NCCL would free the communicator during the call.
TEST(NcclBatchTest, AnAbortWaitsForACallThatWaitsForNoRank) {
  static const api::DriverTable table = driver();
  const auto used = communicator();
  NcclBatch batch, end;
  batch.steps.push_back(step(Verb::kDestroyOperation, used));
  end.steps.push_back(step(Verb::kAbort, used));
  calls().clear();
  hangs = true;
  std::thread uses([&] { (void)make(library(), table, batch); });
  while (!is_hanging) std::this_thread::yield();
  std::thread aborts([&] { (void)make(library(), table, end); });
  while (!used->is_ended) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // an abort without the wait
  hangs = false;
  uses.join();
  aborts.join();
  EXPECT_EQ(calls(),
            (std::vector<std::string>{"destroy operation", "destroyed operation", "abort"}));
}

TEST(NcclBatchTest, ASplitThatDoesNotBlockIsKnownWhenItHasEnded) {
  const auto parent = communicator(false);
  const auto created = std::make_shared<NcclCommunicator>();
  created->blocking = false;
  NcclBatch batch;
  batch.steps.push_back(step(Verb::kSplit, parent));
  batch.steps.front().created = created;
  polls_left = 3;
  EXPECT_EQ(run(batch), nccl::kSuccess);
  EXPECT_EQ(created->handle.load(), &child_there);
  EXPECT_EQ(batch.steps.front().answer.ranks, 4);
  polls_left = 0;
}

TEST(NcclBatchTest, AnAbortWaitsUntilTheCommunicatorCanBeAborted) {
  NcclBatch batch;
  batch.steps.push_back(step(Verb::kInit, nullptr));
  batch.steps.front().ids.emplace_back();
  const auto created = std::make_shared<NcclCommunicator>();
  batch.steps.front().created = created;
  {
    MutexLock lock(created->mutex);
    created->is_being_made = true;
  }
  static const api::DriverTable table = driver();
  calls().clear();
  NcclBatch end;
  end.steps.push_back(step(Verb::kAbort, created));
  std::atomic<bool> has_begun{false};
  std::thread aborts;
  in_init = [&] {
    aborts = std::thread([&] {
      has_begun = true;
      (void)make(library(), table, end);
    });
    while (!has_begun) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // a wrong abort would end now
  };
  (void)make(library(), table, batch);
  in_init = [] {};
  aborts.join();
  EXPECT_EQ(created->handle.load(), nullptr);
  EXPECT_EQ(std::ranges::count(calls(), "abort"), 1);
}

// A client may name any id.
TEST(NcclBatchTest, AnUnknownCommunicatorIsAnError) {
  NcclBatch batch;
  batch.steps.push_back(step(Verb::kDeregister, nullptr));
  EXPECT_EQ(run(batch), nccl::kInvalidArgument);
}

// A program aborts a communicator whose creation failed without blocking.
TEST(NcclBatchTest, ACommunicatorThatWasNeverMadeCanBeAborted) {
  NcclBatch batch;
  batch.steps.push_back(step(Verb::kAbort, nullptr));
  EXPECT_EQ(run(batch), nccl::kSuccess);
  EXPECT_TRUE(calls().empty());
}

// For example ncclCommSplit with NCCL_SPLIT_NOCOLOR makes no communicator.
TEST(NcclBatchTest, ACommunicatorThatIsNotMadeIsNotWaitedFor) {
  const auto parent = communicator(false);
  NcclBatch batch;
  batch.grouping = nccl::Grouping::kGroup;
  batch.steps.push_back(step(Verb::kAllReduce, parent));
  batch.steps.front().created = std::make_shared<NcclCommunicator>();
  batch.steps.front().created->blocking = false;
  polls_left = 2;
  EXPECT_EQ(run(batch), nccl::kSuccess);
  polls_left = 0;
}

TEST(NcclBatchTest, AFailedCreationLeavesNoCommunicator) {
  NcclBatch batch;
  batch.steps.push_back(step(Verb::kInit, nullptr));
  batch.steps.front().ids.emplace_back();
  batch.steps.front().created = std::make_shared<NcclCommunicator>();
  batch.steps.push_back(step(Verb::kDeregister, communicator()));  // fails
  EXPECT_EQ(run(batch), nccl::kInvalidArgument);
  EXPECT_EQ(calls().back(), "abort");
  EXPECT_EQ(batch.steps.front().created->handle.load(), nullptr);
}

TEST(NcclBatchTest, AClientNamesOnlyItsOwnRegistrations) {
  const auto owner = communicator();
  NcclBatch batch;
  batch.steps.push_back(step(Verb::kDeregister, owner));
  batch.steps.front().call.source = 0x1000;
  EXPECT_EQ(run(batch), nccl::kInvalidArgument);
  EXPECT_TRUE(calls().empty());
  {
    MutexLock lock(owner->mutex);
    owner->registrations.insert(0x1000);
  }
  EXPECT_EQ(run(batch), nccl::kSuccess);
  EXPECT_EQ(run(batch), nccl::kInvalidArgument);  // the communicator has ended
}

TEST(NcclCallersTest, CallsDoNotWaitForEachOther) {
  NcclCallers callers(2);
  std::latch first(1), both(2);
  ASSERT_TRUE(callers.start(false, [&] {
    first.wait();
    both.count_down();
  }));
  ASSERT_TRUE(callers.start(false, [&] {
    first.count_down();
    both.count_down();
  }));
  both.wait();
}

TEST(NcclCallersTest, TheirNumberIsBounded) {
  NcclCallers callers(1);
  std::latch go(1), done(1);
  ASSERT_TRUE(callers.start(false, [&] {
    go.wait();
    done.count_down();
  }));
  EXPECT_FALSE(callers.start(false, [] {}));
  std::latch always(1);
  EXPECT_TRUE(callers.start(true, [&] { always.count_down(); }));
  always.wait();
  go.count_down();
  done.wait();
}

TEST(NcclVariablesTest, AProgramSetsNoneThatNamesAFileAPluginOrAnAddress) {
  for (const char* name :
       {"NCCL_DEBUG_FILE", "NCCL_NET_PLUGIN", "NCCL_TUNER_PLUGIN", "NCCL_PROFILER_PLUGIN",
        "NCCL_TOPO_FILE", "NCCL_TOPO_DUMP_FILE", "NCCL_GRAPH_FILE", "NCCL_GRAPH_DUMP_FILE",
        "NCCL_CONF_FILE", "NCCL_COMM_ID", "NCCL_HOSTID", "NCCL_SOCKET_IFNAME", "NCCL_IB_HCA",
        "LD_PRELOAD", "PATH", ""}) {
    EXPECT_FALSE(nccl::may_program_set(name)) << name;
  }
  EXPECT_TRUE(nccl::may_program_set("NCCL_NVLS_ENABLE"));
  EXPECT_TRUE(nccl::may_program_set("NCCL_DEBUG"));
}

}  // namespace
}  // namespace rcuda::server
