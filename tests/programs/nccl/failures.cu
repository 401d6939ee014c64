// Failures: ranks that call different operations, are killed or never come; calls that hang and are
// aborted; ids, devices, streams and communicators that do not exist or do not match. Each case
// must end with an error, and must not hang.
//
//   failures processes N CASE    a process for each rank
//   failures threads N CASE      a thread for each rank
//
// NVIDIA's library may hang or compute wrong results if ranks differ, so these programs need a
// library that checks.
#include <csignal>

#include "ranks.h"

constexpr int kCount = 100;

struct Place {
  Rank rank;
  std::string id_file;  // where rank 0 writes the unique id
  int* data;
};

bool is_last(const Place& place) { return place.rank.rank == place.rank.ranks - 1; }

void expect_failure(ncclComm_t comm, ncclResult_t expected) {
  ncclResult_t state = ncclSuccess;
  CHECK(within_a_minute([&] {
    NCCL(ncclCommGetAsyncError(comm, &state));
    return state != ncclSuccess && state != ncclInProgress;
  }));
  if (state != expected) fail_nccl(__FILE__, __LINE__, "the communicator's error", state, comm);
  CHECK(std::strlen(ncclGetLastError(comm)) > 0);
}

// Aborts the communicator after a failure. After that, its stream must have no work.
void abort(Place& place) {
  NCCL(ncclCommAbort(place.rank.comm));
  place.rank.comm = nullptr;
  CUDA(cudaStreamSynchronize(place.rank.stream));
}

ncclResult_t all_reduce(const Place& place, int count = kCount) {
  return ncclAllReduce(place.data, place.data, count, ncclInt32, ncclSum, place.rank.comm,
                       place.rank.stream);
}

// A call that fails only if the communicator has already failed.
void attempt(ncclResult_t result, ncclResult_t expected) {
  CHECK(result == ncclSuccess || result == expected);
}

void settle(Place& place) {
  NCCL(all_reduce(place));
  CUDA(cudaStreamSynchronize(place.rank.stream));
}

void different_sizes(Place& place) {
  attempt(all_reduce(place, is_last(place) ? kCount / 2 : kCount), ncclInvalidUsage);
  expect_failure(place.rank.comm, ncclInvalidUsage);
  CHECK(all_reduce(place) == ncclInvalidUsage);  // and so does every later call
  abort(place);
}

void different_types(Place& place) {
  attempt(
      ncclAllReduce(place.data, place.data, kCount / 2, is_last(place) ? ncclInt32 : ncclFloat32,
                    ncclSum, place.rank.comm, place.rank.stream),
      ncclInvalidUsage);
  expect_failure(place.rank.comm, ncclInvalidUsage);
  abort(place);
}

void different_operations(Place& place) {
  const Rank& rank = place.rank;
  settle(place);
  if (is_last(place)) {
    attempt(ncclBroadcast(place.data, place.data, kCount, ncclInt32, 0, rank.comm, rank.stream),
            ncclInvalidUsage);
  } else {
    attempt(all_reduce(place), ncclInvalidUsage);
  }
  expect_failure(rank.comm, ncclInvalidUsage);
  abort(place);
}

void different_transfers(Place& place) {
  const Rank& rank = place.rank;
  settle(place);
  if (rank.rank == 0)
    attempt(ncclSend(place.data, kCount, ncclInt32, rank.ranks - 1, rank.comm, rank.stream),
            ncclInvalidUsage);
  if (is_last(place))
    attempt(ncclRecv(place.data, kCount / 2, ncclInt32, 0, rank.comm, rank.stream),
            ncclInvalidUsage);
  expect_failure(rank.comm, ncclInvalidUsage);
  abort(place);
}

void different_order(Place& place) {
  Rank& rank = place.rank;
  ncclComm_t other;
  NCCL(ncclCommSplit(rank.comm, 0, rank.rank, &other, nullptr));
  cudaStream_t second;
  CUDA(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
  settle(place);
  NCCL(ncclAllReduce(place.data, place.data, kCount, ncclInt32, ncclSum, other, second));
  CUDA(cudaStreamSynchronize(second));
  const ncclComm_t order[] = {is_last(place) ? other : rank.comm,
                              is_last(place) ? rank.comm : other};
  for (const ncclComm_t comm : order) {
    attempt(ncclAllReduce(place.data, place.data, kCount, ncclInt32, ncclSum, comm,
                          comm == other ? second : rank.stream),
            ncclInvalidUsage);
  }
  expect_failure(rank.comm, ncclInvalidUsage);
  NCCL(ncclCommAbort(other));
  abort(place);
  CUDA(cudaStreamSynchronize(second));
}

// The others get an error if a rank dies between operations, and if it dies while they wait for it.
void killed(Place& place) {
  settle(place);
  if (is_last(place)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    raise(SIGKILL);
  }
  if (place.rank.rank % 2 == 0) attempt(all_reduce(place), ncclRemoteError);
  expect_failure(place.rank.comm, ncclRemoteError);
  abort(place);
}

// The survivors continue with a smaller communicator.
void survived(Place& place) {
  Rank& rank = place.rank;
  settle(place);
  if (is_last(place)) raise(SIGKILL);
  expect_failure(rank.comm, ncclRemoteError);
  int excluded[] = {rank.ranks - 1};
  ncclComm_t smaller;
  NCCL(ncclCommShrink(rank.comm, excluded, 1, &smaller, nullptr, kNcclShrinkAbort));
  NCCL(ncclCommAbort(rank.comm));
  rank.comm = smaller;
  settle(place);
}

// Waits until all ranks below `ranks` have called this. If a rank has a worker, the worker then has
// all calls that the rank made before.
void gather(const Place& place, int ranks, const char* name) {
  int* word;
  CUDA(cudaMalloc(&word, sizeof(int)));
  CUDA(cudaFree(word));
  const std::string prefix = place.id_file + "." + name;
  std::ofstream(prefix + std::to_string(place.rank.rank)).flush();
  for (int rank = 0; rank < ranks; ++rank) {
    const std::string path = prefix + std::to_string(rank);
    CHECK(within_a_minute([&] { return access(path.c_str(), F_OK) == 0; }));
  }
}

// A rank dies while the others wait for it in a call. They still have the communicator.
void survived_in_call(Place& place) {
  Rank& rank = place.rank;
  int factor = 2;
  ncclRedOp_t doubled;
  NCCL(ncclRedOpCreatePreMulSum(&doubled, &factor, ncclInt32, ncclScalarHostImmediate, rank.comm));
  gather(place, rank.ranks, "operator");
  if (is_last(place)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    raise(SIGKILL);
  }
  attempt(all_reduce(place), ncclRemoteError);
  expect_failure(rank.comm, ncclRemoteError);
  NCCL(ncclRedOpDestroy(doubled, rank.comm));
  int excluded[] = {rank.ranks - 1};
  ncclComm_t smaller;
  NCCL(ncclCommShrink(rank.comm, excluded, 1, &smaller, nullptr, kNcclShrinkAbort));
  NCCL(ncclCommDestroy(rank.comm));
  rank.comm = smaller;
  settle(place);
}

// The new communicator, whose calls do not block, ends with an error. Its parent can be aborted.
void expect_not_made(Place& place, ncclComm_t made) {
  CHECK(outcome(made) == ncclRemoteError);
  NCCL(ncclCommAbort(made));
  abort(place);
}

// The last rank dies while the others wait for it in a split.
void died_before_split(Place& place) {
  Rank& rank = place.rank;
  settle(place);
  ncclConfig_t config;
  config.blocking = 0;
  ncclComm_t part = nullptr;
  if (!is_last(place)) {
    NCCL_EXPECT(ncclInProgress, ncclCommSplit(rank.comm, 0, rank.rank, &part, &config));
  }
  gather(place, rank.ranks - 1, "split");
  if (is_last(place)) raise(SIGKILL);
  expect_not_made(place, part);
}

// A second rank dies while it makes a smaller communicator with rank 0. Rank 1 does not take part.
void died_in_shrink(Place& place) {
  Rank& rank = place.rank;
  settle(place);
  if (is_last(place)) raise(SIGKILL);
  expect_failure(rank.comm, ncclRemoteError);
  int excluded[] = {rank.ranks - 1};
  ncclConfig_t config;
  config.blocking = 0;
  ncclComm_t smaller = nullptr;
  if (rank.rank != 1) {
    NCCL_EXPECT(ncclInProgress,
                ncclCommShrink(rank.comm, excluded, 1, &smaller, &config, kNcclShrinkAbort));
  }
  gather(place, rank.ranks - 1, "shrink");
  if (rank.rank == 1) return abort(place);
  if (rank.rank == rank.ranks - 2) raise(SIGKILL);
  expect_not_made(place, smaller);
}

// Makes a communicator of all ranks except the last, which gets null.
ncclComm_t make_part(Place& place) {
  const Rank& rank = place.rank;
  ncclComm_t part = nullptr;
  NCCL(ncclCommSplit(rank.comm, is_last(place) ? kNcclNoColor : 0, rank.rank, &part, nullptr));
  return part;
}

// The last rank joins the communicator of the other ranks.
ncclResult_t grow(Place& place, ncclComm_t part, ncclComm_t* made, int blocking) {
  const Rank& rank = place.rank;
  ncclUniqueId id = id_through(place.id_file + ".growth", rank.rank, part);
  ncclConfig_t config;
  config.blocking = blocking;
  return ncclCommGrow(part, rank.ranks, part && rank.rank != 0 ? nullptr : &id,
                      part ? -1 : rank.rank, made, &config);
}

// A rank dies during the growth of a communicator. Rank 1 does not take part, so the others wait.
void die_in_growth(Place& place, int victim) {
  Rank& rank = place.rank;
  settle(place);
  const ncclComm_t part = make_part(place);
  ncclComm_t made = nullptr;
  if (rank.rank != 1) NCCL_EXPECT(ncclInProgress, grow(place, part, &made, 0));
  gather(place, rank.ranks, "growth");
  if (rank.rank == victim) raise(SIGKILL);
  if (rank.rank != 1) CHECK(outcome(made) == ncclRemoteError);
  if (rank.rank != 1 && part) expect_failure(part, ncclRemoteError);
  for (const ncclComm_t each : {made, part}) {
    if (each) NCCL(ncclCommAbort(each));
  }
  abort(place);
}

void died_in_growth(Place& place) { die_in_growth(place, place.rank.ranks - 1); }
void died_before_growth(Place& place) { die_in_growth(place, 1); }

void died_after_growth(Place& place) {
  Rank& rank = place.rank;
  const ncclComm_t part = make_part(place);
  ncclComm_t made = nullptr;
  NCCL(grow(place, part, &made, 1));
  NCCL(ncclCommAbort(rank.comm));
  rank.comm = made;
  settle(place);
  if (is_last(place)) raise(SIGKILL);
  expect_failure(made, ncclRemoteError);
  NCCL(ncclCommAbort(made));
  rank.comm = part;
  settle(place);  // the parent has lost no rank
}

// The program ends the communicator without an abort.
void destroyed(Place& place) {
  settle(place);
  if (is_last(place)) raise(SIGKILL);
  expect_failure(place.rank.comm, ncclRemoteError);
  NCCL(ncclCommDestroy(place.rank.comm));
  place.rank.comm = nullptr;
}

// An operation in the stream waits for a rank that does not make the call. NCCL does not
// report to that rank that the others have left.
void aborted_operation(Place& place) {
  settle(place);
  if (is_last(place)) {
    gather(place, place.rank.ranks - 1, "left");
  } else {
    attempt(all_reduce(place), ncclRemoteError);
    std::thread other([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      NCCL(ncclCommAbort(place.rank.comm));
    });
    CUDA(cudaStreamSynchronize(place.rank.stream));
    other.join();
    place.rank.comm = nullptr;
    return gather(place, 0, "left");
  }
  abort(place);
}

// The first operation may block in the call itself, and another thread aborts it.
void aborted_first_operation(Place& place) {
  if (is_last(place)) {
    gather(place, place.rank.ranks - 1, "left");
    return abort(place);
  }
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    NCCL(ncclCommAbort(place.rank.comm));
  });
  // Fails if it blocks. If the connections were made beforehand, NCCL only queues it.
  (void)all_reduce(place);
  other.join();
  place.rank.comm = nullptr;
  CUDA(cudaStreamSynchronize(place.rank.stream));
  gather(place, 0, "left");
}

// The cases from here on make their communicators themselves.

void never_comes(Place& place) {
  Rank& rank = place.rank;
  if (is_last(place)) return;
  ncclConfig_t config;
  config.blocking = 0;
  const ncclUniqueId id = id_through(place.id_file, rank.rank);
  const ncclResult_t begun = ncclCommInitRankConfig(&rank.comm, rank.ranks, id, rank.rank, &config);
  CHECK(begun == ncclInProgress || begun == ncclSuccess);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  ncclResult_t state = ncclSuccess;
  NCCL(ncclCommGetAsyncError(rank.comm, &state));
  CHECK(state != ncclSuccess);  // the rank waits, or is notified that others have given up
  abort(place);
}

void same_device(Place& place) {
  Rank& rank = place.rank;
  CUDA(cudaSetDevice(0));
  const ncclUniqueId id = id_through(place.id_file, rank.rank);
  NCCL_EXPECT(ncclInvalidUsage, ncclCommInitRank(&rank.comm, rank.ranks, id, rank.rank));
  CHECK(rank.comm == nullptr);
}

void foreign_ids(Place& place) {
  Rank& rank = place.rank;
  if (rank.rank != 0) return;
  ncclUniqueId id;
  std::memset(&id, 0x5a, sizeof id);
  CHECK(ncclCommInitRank(&rank.comm, 2, id, 0) != ncclSuccess);
  NCCL(ncclGetUniqueId(&id));
  id.internal[0] ^= 1;  // the right address, and a wrong key
  CHECK(ncclCommInitRank(&rank.comm, 2, id, 0) != ncclSuccess);
  rank.comm = nullptr;
}

void bad_arguments(Place& place) {
  const Rank& rank = place.rank;
  const auto no_type = static_cast<ncclDataType_t>(99);
  const auto no_op = static_cast<ncclRedOp_t>(99);
  NCCL_EXPECT(ncclInvalidArgument,
              ncclAllReduce(place.data, place.data, 1, no_type, ncclSum, rank.comm, rank.stream));
  NCCL_EXPECT(ncclInvalidArgument,
              ncclAllReduce(place.data, place.data, 1, ncclInt32, no_op, rank.comm, rank.stream));
  NCCL_EXPECT(ncclInvalidArgument, ncclBroadcast(place.data, place.data, 1, ncclInt32, rank.ranks,
                                                 rank.comm, rank.stream));
  NCCL_EXPECT(ncclInvalidArgument, ncclSend(place.data, 1, ncclInt32, -1, rank.comm, rank.stream));
  CHECK(ncclGroupEnd() != ncclSuccess);  // without a start
  ncclConfig_t config;
  config.magic = 1;
  ncclComm_t made = nullptr;
  NCCL_EXPECT(ncclInvalidArgument, ncclCommSplit(rank.comm, 0, 0, &made, &config));
  // After an error in a group, the whole group fails and none of its calls runs.
  NCCL(ncclGroupStart());
  NCCL(all_reduce(place));
  NCCL_EXPECT(ncclInvalidArgument,
              ncclAllReduce(place.data, place.data, 1, no_type, ncclSum, rank.comm, rank.stream));
  NCCL_EXPECT(ncclInvalidArgument, ncclGroupEnd());
  settle(place);
}

// The operations of a group have no order, so the result of these two is undefined.
void dependent_group(Place& place) {
  settle(place);
  NCCL(ncclGroupStart());
  NCCL(all_reduce(place));
  NCCL(all_reduce(place));
  NCCL_EXPECT(ncclInvalidUsage, ncclGroupEnd());
  settle(place);
}

void foreign_stream(Place& place) {
  const Rank& rank = place.rank;
  cudaStream_t stream;
  CUDA(cudaSetDevice(device_of(rank.rank + 1)));
  CUDA(cudaStreamCreate(&stream));
  CUDA(cudaSetDevice(rank.device));
  settle(place);
  CHECK(ncclAllReduce(place.data, place.data, kCount, ncclInt32, ncclSum, rank.comm, stream) !=
        ncclSuccess);
  settle(place);
}

void ended(Place& place) {
  settle(place);
  const ncclComm_t comm = place.rank.comm;
  NCCL(ncclCommDestroy(comm));
  CHECK(all_reduce(place) == ncclInvalidArgument);
  int count = 0;
  CHECK(ncclCommCount(comm, &count) == ncclInvalidArgument);
  CHECK(ncclCommDestroy(comm) == ncclInvalidArgument);
  place.rank.comm = nullptr;
}

void two_threads(Place& place) {
  settle(place);
  NCCL(ncclGroupStart());
  NCCL(all_reduce(place));
  std::thread other([&] { NCCL_EXPECT(ncclInvalidUsage, all_reduce(place)); });
  other.join();
  NCCL(ncclGroupEnd());
  settle(place);
}

struct Case {
  const char* name;
  void (*run)(Place&);
  bool makes_communicators;
  int killed = 0;  // ranks that do not end by themselves
};

constexpr Case kCases[] = {
    {"different_sizes", different_sizes, false},
    {"different_types", different_types, false},
    {"different_operations", different_operations, false},
    {"different_transfers", different_transfers, false},
    {"different_order", different_order, false},
    {"killed", killed, false, 1},
    {"survived", survived, false, 1},
    {"survived_in_call", survived_in_call, false, 1},
    {"died_before_split", died_before_split, false, 1},
    {"died_in_shrink", died_in_shrink, false, 2},
    {"died_in_growth", died_in_growth, false, 1},
    {"died_before_growth", died_before_growth, false, 1},
    {"died_after_growth", died_after_growth, false, 1},
    {"destroyed", destroyed, false, 1},
    {"aborted_operation", aborted_operation, false},
    {"aborted_first_operation", aborted_first_operation, false},
    {"never_comes", never_comes, true},
    {"same_device", same_device, true},
    {"foreign_ids", foreign_ids, true},
    {"bad_arguments", bad_arguments, false},
    {"dependent_group", dependent_group, false},
    {"foreign_stream", foreign_stream, false},
    {"ended", ended, false},
    {"two_threads", two_threads, false},
};

// Returns when each rank has its communicator. NCCL's initialization is not a barrier: one rank may
// return while another rank still initializes. If the first rank then aborts, the other rank fails.
void meet(const Place& place) {
  const std::string prefix = place.id_file + ".rank";
  std::ofstream(prefix + std::to_string(place.rank.rank)).flush();
  for (int rank = 0; rank < place.rank.ranks; ++rank) {
    const std::string path = prefix + std::to_string(rank);
    CHECK(within_a_minute([&] { return access(path.c_str(), F_OK) == 0; }));
  }
}

void run_rank(const Case& scenario, int rank, int ranks, const std::string& id_file) {
  Place place{{rank, ranks, device_of(rank), nullptr, nullptr}, id_file, nullptr};
  if (!scenario.makes_communicators) {
    place.rank = make_rank(rank, ranks, id_through(id_file, rank));
    meet(place);
  } else {
    CUDA(cudaSetDevice(place.rank.device));
    CUDA(cudaStreamCreateWithFlags(&place.rank.stream, cudaStreamNonBlocking));
  }
  CUDA(cudaMalloc(&place.data, kCount * sizeof(int)));
  CUDA(cudaMemset(place.data, 0, kCount * sizeof(int)));
  CUDA(cudaDeviceSynchronize());
  scenario.run(place);
  if (place.rank.comm) NCCL(ncclCommDestroy(place.rank.comm));
  CUDA(cudaSetDevice(place.rank.device));
  CUDA(cudaStreamSynchronize(place.rank.stream));
  CUDA(cudaFree(place.data));
}

int main(int argc, char** argv) {
  CHECK(argc == 4);
  const int count = std::atoi(argv[2]);
  for (const Case& scenario : kCases) {
    if (std::strcmp(argv[3], scenario.name) != 0) continue;
    int killed = 0;
    if (std::strcmp(argv[1], "processes") == 0) {
      const std::vector<int> statuses = fork_ranks(count, [&](int rank, const std::string& folder) {
        run_rank(scenario, rank, count, folder + "/id");
      });
      for (const int status : statuses) {
        CHECK(status == 0 || (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL));
        killed += status != 0;
      }
    } else {
      char folder[] = "/tmp/ranks-XXXXXX";
      CHECK(mkdtemp(folder) != nullptr);
      const std::string id_file = std::string(folder) + "/id";
      std::vector<std::thread> threads;
      for (int rank = 0; rank < count; ++rank) {
        threads.emplace_back([&, rank] { run_rank(scenario, rank, count, id_file); });
      }
      for (std::thread& thread : threads) thread.join();
      std::filesystem::remove_all(folder);
    }
    CHECK(killed == scenario.killed);
    std::printf("%s: as expected\n", scenario.name);
    return 0;
  }
  std::fprintf(stderr, "%s: no such case\n", argv[3]);
  return 1;
}
