// Sums the buffers of all ranks by a kernel that reads and writes the memory of the other ranks
// (NCCL's device API, LSA). Does not depend on rcuda. tests/gpu/nccl_device.py compiles this file
// and runs the program.
//
//   nccl_device all N             one thread, ncclCommInitAll
//   nccl_device processes N       a process for each rank
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <cuda_runtime.h>
#include <nccl.h>
#include <nccl_device.h>
#include <sys/wait.h>
#include <unistd.h>

#define CUDA(call)                                                                   \
  do {                                                                               \
    const cudaError_t error_ = (call);                                               \
    if (error_ != cudaSuccess) fail(__LINE__, #call, cudaGetErrorString(error_));    \
  } while (0)
#define NCCL(call)                                                                   \
  do {                                                                               \
    const ncclResult_t result_ = (call);                                             \
    if (result_ != ncclSuccess) fail(__LINE__, #call, ncclGetErrorString(result_));  \
  } while (0)

constexpr int kBlocks = 4;
constexpr size_t kCount = 1u << 20;
constexpr int kRounds = 20;

[[noreturn]] void fail(int line, const char* call, const char* why) {
  std::fprintf(stderr, "line %d: %s: %s\n", line, call, why);
  std::_Exit(1);
}

__global__ void sum(ncclWindow_t from, ncclWindow_t to, size_t count, ncclDevComm comm) {
  ncclLsaBarrierSession<ncclCoopCta> barrier(ncclCoopCta(), comm, ncclTeamTagLsa(), blockIdx.x);
  barrier.sync(ncclCoopCta(), cuda::memory_order_acquire);
  const size_t step = size_t{gridDim.x} * blockDim.x * comm.lsaSize;
  for (size_t i = (size_t{blockIdx.x} * blockDim.x + threadIdx.x) * comm.lsaSize + comm.lsaRank; i < count; i += step) {
    float all = 0;
    for (int peer = 0; peer < comm.lsaSize; ++peer) all += static_cast<float*>(ncclGetLsaPointer(from, 0, peer))[i];
    for (int peer = 0; peer < comm.lsaSize; ++peer) static_cast<float*>(ncclGetLsaPointer(to, 0, peer))[i] = all;
  }
  barrier.sync(ncclCoopCta(), cuda::memory_order_release);
}

struct Rank {
  int rank, device;
  ncclComm_t comm;
  cudaStream_t stream;
  float *from, *to;
  ncclWindow_t windows[2];
  ncclDevComm dev;
};

void begin(std::vector<Rank>& ranks, int count) {
  const size_t bytes = kCount * sizeof(float);
  for (Rank& rank : ranks) {
    CUDA(cudaSetDevice(rank.device));
    CUDA(cudaStreamCreate(&rank.stream));
    NCCL(ncclMemAlloc(reinterpret_cast<void**>(&rank.from), bytes));
    NCCL(ncclMemAlloc(reinterpret_cast<void**>(&rank.to), bytes));
    std::vector<float> values(kCount);
    for (size_t i = 0; i < kCount; ++i) values[i] = static_cast<float>(i % 1000 * (rank.rank + 1));
    CUDA(cudaMemcpy(rank.from, values.data(), bytes, cudaMemcpyHostToDevice));
  }
  for (const int which : {0, 1}) {
    NCCL(ncclGroupStart());
    for (Rank& rank : ranks) {
      CUDA(cudaSetDevice(rank.device));
      NCCL(ncclCommWindowRegister(rank.comm, which ? rank.to : rank.from, bytes, &rank.windows[which],
                                  NCCL_WIN_COLL_SYMMETRIC));
    }
    NCCL(ncclGroupEnd());
  }
  NCCL(ncclGroupStart());
  for (Rank& rank : ranks) {
    CUDA(cudaSetDevice(rank.device));
#ifdef NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER
    ncclDevCommRequirements requirements = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
#else
    ncclDevCommRequirements requirements{};
#endif
    requirements.lsaBarrierCount = kBlocks;
    NCCL(ncclDevCommCreate(rank.comm, &requirements, &rank.dev));
  }
  NCCL(ncclGroupEnd());
  for (const Rank& rank : ranks) {
    const ncclTeam team = ncclTeamLsa(rank.comm);
    if (team.nRanks != count || team.rank != rank.rank || rank.dev.lsaSize != count) fail(__LINE__, "ncclTeamLsa", "wrong");
    if (ncclTeamRankToWorld(rank.comm, team, 0) != 0) fail(__LINE__, "ncclTeamRankToWorld", "wrong");
  }
}

void check(std::vector<Rank>& ranks, int count) {
  for (Rank& rank : ranks) {
    CUDA(cudaSetDevice(rank.device));
    CUDA(cudaStreamSynchronize(rank.stream));
    std::vector<float> values(kCount);
    CUDA(cudaMemcpy(values.data(), rank.to, kCount * sizeof(float), cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < kCount; ++i) {
      const auto expected = static_cast<float>(i % 1000) * static_cast<float>(count * (count + 1) / 2);
      if (values[i] != expected) fail(__LINE__, "a sum", "wrong");
    }
  }
}

void run(std::vector<Rank> ranks, int count) {
  begin(ranks, count);
  for (int round = 0; round < kRounds; ++round) {
    for (Rank& rank : ranks) {
      CUDA(cudaSetDevice(rank.device));
      sum<<<kBlocks, 256, 0, rank.stream>>>(rank.windows[0], rank.windows[1], kCount, rank.dev);
      CUDA(cudaGetLastError());
    }
  }
  check(ranks, count);
  for (Rank& rank : ranks) {
    CUDA(cudaSetDevice(rank.device));
    NCCL(ncclDevCommDestroy(rank.comm, &rank.dev));
  }
  NCCL(ncclGroupStart());
  for (Rank& rank : ranks) {
    for (ncclWindow_t window : rank.windows) NCCL(ncclCommWindowDeregister(rank.comm, window));
  }
  NCCL(ncclGroupEnd());
  for (Rank& rank : ranks) {
    CUDA(cudaSetDevice(rank.device));
    NCCL(ncclMemFree(rank.from));
    NCCL(ncclMemFree(rank.to));
    NCCL(ncclCommDestroy(rank.comm));
  }
}

// The id goes through pipes, which exist before CUDA is used.
void run_processes(int count) {
  std::vector<int> ends(2 * count);
  for (int rank = 1; rank < count; ++rank) {
    if (pipe(&ends[2 * rank]) != 0) fail(__LINE__, "pipe", "failed");
  }
  std::vector<pid_t> children;
  for (int rank = 0; rank < count; ++rank) {
    const pid_t child = fork();
    if (child != 0) {
      children.push_back(child);
      continue;
    }
    ncclUniqueId id;
    if (rank == 0) NCCL(ncclGetUniqueId(&id));
    for (int other = 1; rank == 0 && other < count; ++other) {
      if (write(ends[2 * other + 1], &id, sizeof id) != sizeof id) fail(__LINE__, "write", "failed");
    }
    if (rank != 0 && read(ends[2 * rank], &id, sizeof id) != sizeof id) fail(__LINE__, "read", "failed");
    Rank mine{rank, rank};
    CUDA(cudaSetDevice(rank));
    NCCL(ncclCommInitRank(&mine.comm, count, id, rank));
    run({mine}, count);
    std::exit(0);
  }
  for (const pid_t child : children) {
    int status = 0;
    if (waitpid(child, &status, 0) != child || status != 0) fail(__LINE__, "a rank", "failed");
  }
}

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const int count = std::atoi(argv[2]);
  if (std::strcmp(argv[1], "processes") == 0) {
    run_processes(count);
  } else {
    std::vector<ncclComm_t> comms(count);
    NCCL(ncclCommInitAll(comms.data(), count, nullptr));
    std::vector<Rank> ranks;
    for (int rank = 0; rank < count; ++rank) ranks.push_back({rank, rank, comms[rank]});
    run(ranks, count);
  }
  std::printf("%s: %d ranks have the right sums\n", argv[1], count);
  return 0;
}
