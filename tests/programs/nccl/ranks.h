// Shared by the programs of this folder: ranks of a communicator in one of three arrangements.
//
//   PROGRAM all N         one thread, ncclCommInitAll, and each operation as a group for all ranks
//   PROGRAM threads N     a thread for each rank
//   PROGRAM processes N   a process for each rank; the unique id goes through a file
//
// Rank r uses device r % devices. A program uses only the interfaces of NCCL and CUDA, and prints
// the same in every arrangement.
#pragma once

#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include "../../support/nccl/nccl_api.h"
#include "../program.h"

inline void fail_nccl(const char* file, int line, const char* call, ncclResult_t result,
                      ncclComm_t comm) {
  const std::string text =
      std::string(ncclGetErrorString(result)) + " (" + ncclGetLastError(comm) + ")";
  fail(file, line, call, text.c_str());
}

#define NCCL_EXPECT(expected, call)                                                    \
  do {                                                                                 \
    const ncclResult_t result_ = (call);                                               \
    if (result_ != (expected)) fail_nccl(__FILE__, __LINE__, #call, result_, nullptr); \
  } while (0)

#define NCCL(call) NCCL_EXPECT(ncclSuccess, call)

struct Rank {
  int rank, ranks, device;
  ncclComm_t comm;
  cudaStream_t stream;
};

// The ranks of this thread.
using Ranks = std::vector<Rank>;
using Body = std::function<void(Ranks&)>;

// Calls `call` for each rank of the thread, with its device current, in one group.
template <typename Call>
void each(Ranks& ranks, Call call) {
  NCCL(ncclGroupStart());
  for (Rank& rank : ranks) {
    CUDA(cudaSetDevice(rank.device));
    call(rank);
  }
  NCCL(ncclGroupEnd());
}

inline void synchronize(Ranks& ranks) {
  for (Rank& rank : ranks) CUDA(cudaStreamSynchronize(rank.stream));
}

// Prints one line for the whole communicator.
inline void say(const Ranks& ranks, const char* line) {
  if (ranks.front().rank == 0) std::printf("%s\n", line);
}

inline bool within_a_minute(const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

// Waits until the last call on a non-blocking communicator has ended, and returns its result.
inline ncclResult_t outcome(ncclComm_t comm) {
  ncclResult_t state = ncclInProgress;
  CHECK(within_a_minute([&] {
    NCCL(ncclCommGetAsyncError(comm, &state));
    return state != ncclInProgress;
  }));
  return state;
}

inline int device_of(int rank) {
  int devices = 0;
  CUDA(cudaGetDeviceCount(&devices));
  CHECK(devices > 0);
  return rank % devices;
}

inline Rank make_rank(int rank, int ranks, const ncclUniqueId& id) {
  Rank made{rank, ranks, device_of(rank), nullptr, nullptr};
  CUDA(cudaSetDevice(made.device));
  CUDA(cudaStreamCreateWithFlags(&made.stream, cudaStreamNonBlocking));
  NCCL(ncclCommInitRank(&made.comm, ranks, id, rank));
  return made;
}

// A rank's process may end only when no other rank needs it, so all ranks meet first.
inline void end_ranks(Ranks& ranks) {
  std::vector<void*> words(ranks.size());
  each(ranks, [&](Rank& rank) {
    void*& word = words[&rank - ranks.data()];
    CUDA(cudaMallocAsync(&word, sizeof(int), rank.stream));
    NCCL(ncclAllReduce(word, word, 1, ncclInt32, ncclMax, rank.comm, rank.stream));
  });
  for (Rank& rank : ranks) CUDA(cudaFreeAsync(words[&rank - ranks.data()], rank.stream));
  synchronize(ranks);
  for (Rank& rank : ranks) {
    CUDA(cudaSetDevice(rank.device));
    CUDA(cudaStreamDestroy(rank.stream));
    if (rank.comm) NCCL(ncclCommDestroy(rank.comm));
  }
}

// Writes the id of rank 0 to the file, and reads it as every other rank. With `growing`, a
// communicator of rank 0, the id is for new ranks of this communicator.
inline ncclUniqueId id_through(const std::string& path, int rank, ncclComm_t growing = nullptr) {
  ncclUniqueId id{};
  if (rank == 0) {
    NCCL(growing ? ncclCommGetUniqueId(growing, &id) : ncclGetUniqueId(&id));
    std::ofstream(path + ".new").write(id.internal, sizeof id.internal);
    CHECK(rename((path + ".new").c_str(), path.c_str()) == 0);
  } else {
    CHECK(within_a_minute([&] { return access(path.c_str(), R_OK) == 0; }));
    std::ifstream(path).read(id.internal, sizeof id.internal);
  }
  return id;
}

inline void run_all(int count, const Body& body) {
  std::vector<int> devices;
  std::vector<ncclComm_t> comms(count);
  Ranks ranks;
  for (int rank = 0; rank < count; ++rank) devices.push_back(device_of(rank));
  NCCL(ncclCommInitAll(comms.data(), count, devices.data()));
  for (int rank = 0; rank < count; ++rank) {
    ranks.push_back({rank, count, devices[rank], comms[rank], nullptr});
    CUDA(cudaSetDevice(devices[rank]));
    CUDA(cudaStreamCreateWithFlags(&ranks.back().stream, cudaStreamNonBlocking));
  }
  body(ranks);
  end_ranks(ranks);
}

inline void run_threads(int count, const Body& body) {
  ncclUniqueId id;
  NCCL(ncclGetUniqueId(&id));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < count; ++rank) {
    threads.emplace_back([&, rank] {
      Ranks ranks{make_rank(rank, count, id)};
      body(ranks);
      end_ranks(ranks);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Starts a process for each rank, before CUDA is used. Returns their exit statuses, as waitpid()
// reports them.
inline std::vector<int> fork_ranks(
    int count, const std::function<void(int rank, const std::string& folder)>& main) {
  char folder[] = "/tmp/ranks-XXXXXX";
  CHECK(mkdtemp(folder) != nullptr);
  std::fflush(stdout);
  std::vector<pid_t> children;
  for (int rank = 0; rank < count; ++rank) {
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
      main(rank, folder);
      std::exit(0);
    }
    children.push_back(child);
  }
  std::vector<int> statuses;
  for (const pid_t child : children) CHECK(waitpid(child, &statuses.emplace_back(), 0) == child);
  std::filesystem::remove_all(folder);
  return statuses;
}

inline void run_processes(int count, const Body& body) {
  const std::vector<int> statuses = fork_ranks(count, [&](int rank, const std::string& folder) {
    Ranks ranks{make_rank(rank, count, id_through(folder + "/id", rank))};
    body(ranks);
    end_ranks(ranks);
  });
  for (const int status : statuses) CHECK(status == 0);
}

// main() of a program whose `body` does the same in every arrangement.
inline int run(int argc, char** argv, const Body& body) {
  CHECK(argc == 3);
  const std::string arrangement = argv[1];
  const int count = std::atoi(argv[2]);
  if (arrangement == "all") run_all(count, body);
  if (arrangement == "threads") run_threads(count, body);
  if (arrangement == "processes") run_processes(count, body);
  std::printf("%s: as expected\n", program_invocation_short_name);
  return 0;
}
