// Communicators: their ranks and devices, parts of communicators, smaller and larger ones, calls
// that do not block, memory of NCCL.
#include <algorithm>

#include "ranks.h"

// All-reduces a 1 of each rank. The sum must be the number of ranks of the communicator.
void check_sum(const std::vector<Rank>& ranks) {
  std::vector<int*> data;
  for (const Rank& rank : ranks) {
    const int one = 1;
    CUDA(cudaSetDevice(rank.device));
    CUDA(cudaMalloc(&data.emplace_back(), sizeof(int)));
    CUDA(cudaMemcpyAsync(data.back(), &one, sizeof one, cudaMemcpyHostToDevice, rank.stream));
  }
  NCCL(ncclGroupStart());
  for (size_t i = 0; i < ranks.size(); ++i) {
    NCCL(ncclAllReduce(data[i], data[i], 1, ncclInt32, ncclSum, ranks[i].comm, ranks[i].stream));
  }
  NCCL(ncclGroupEnd());
  for (size_t i = 0; i < ranks.size(); ++i) {
    int sum = 0;
    CUDA(cudaSetDevice(ranks[i].device));
    CUDA(cudaMemcpyAsync(&sum, data[i], sizeof sum, cudaMemcpyDeviceToHost, ranks[i].stream));
    CUDA(cudaStreamSynchronize(ranks[i].stream));
    CHECK(sum == ranks[i].ranks);
    CUDA(cudaFree(data[i]));
  }
}

void check_known(const Rank& rank) {
  int count = 0, own = -1, device = -1;
  NCCL(ncclCommCount(rank.comm, &count));
  NCCL(ncclCommUserRank(rank.comm, &own));
  NCCL(ncclCommCuDevice(rank.comm, &device));
  CHECK(count == rank.ranks && own == rank.rank && device == rank.device);
  ncclResult_t state = ncclInternalError;
  NCCL(ncclCommGetAsyncError(rank.comm, &state));
  CHECK(state == ncclSuccess);
}

void known(Ranks& ranks) {
  int version = 0;
  NCCL(ncclGetVersion(&version));
  CHECK(version > 20000);
  for (const Rank& rank : ranks) check_known(rank);
  check_sum(ranks);
  say(ranks, "ranks and devices: right");
}

// Even and odd ranks, in reverse order; the last rank is in neither.
void parts(Ranks& ranks) {
  Ranks made = ranks;
  const int last = ranks.front().ranks - 1;
  NCCL(ncclGroupStart());
  for (size_t i = 0; i < ranks.size(); ++i) {
    const int color = ranks[i].rank == last ? kNcclNoColor : ranks[i].rank % 2;
    NCCL(ncclCommSplit(ranks[i].comm, color, -ranks[i].rank, &made[i].comm, nullptr));
  }
  NCCL(ncclGroupEnd());
  for (Rank& rank : made) {
    const int color = rank.rank % 2;
    CHECK((rank.rank == last) == (rank.comm == nullptr));
    rank.ranks = (last + 1 - color) / 2;
    rank.rank = rank.ranks - 1 - rank.rank / 2;
  }
  made.erase(std::remove_if(made.begin(), made.end(),
                            [](const Rank& rank) { return rank.comm == nullptr; }),
             made.end());
  for (const Rank& rank : made) check_known(rank);
  check_sum(made);
  check_sum(ranks);
  for (const Rank& rank : made) NCCL(ncclCommDestroy(rank.comm));
  say(ranks, "parts of a communicator: right");
}

void smaller(Ranks& ranks) {
  Ranks made = ranks;
  const int last = ranks.front().ranks - 1;
  int excluded[] = {last};
  NCCL(ncclGroupStart());
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i].rank == last) continue;
    NCCL(ncclCommShrink(ranks[i].comm, excluded, 1, &made[i].comm, nullptr, 0));
    made[i].ranks = last;
  }
  NCCL(ncclGroupEnd());
  made.erase(
      std::remove_if(made.begin(), made.end(), [&](const Rank& rank) { return rank.rank == last; }),
      made.end());
  if (!made.empty()) check_sum(made);
  for (const Rank& rank : made) {
    check_known(rank);
    NCCL(ncclCommFinalize(rank.comm));
    NCCL(ncclCommDestroy(rank.comm));
  }
  say(ranks, "smaller communicators: right");
}

// Sends the id of rank 0 to all ranks of a communicator.
void broadcast_id(Ranks& ranks, ncclUniqueId* id) {
  std::vector<void*> data(ranks.size());
  each(ranks, [&](Rank& rank) {
    void*& own = data[&rank - ranks.data()];
    CUDA(cudaMallocAsync(&own, sizeof *id, rank.stream));
    CUDA(cudaMemcpyAsync(own, id, sizeof *id, cudaMemcpyHostToDevice, rank.stream));
    NCCL(ncclBroadcast(own, own, sizeof *id, ncclInt8, 0, rank.comm, rank.stream));
  });
  for (size_t i = 0; i < ranks.size(); ++i) {
    CUDA(cudaMemcpyAsync(id, data[i], sizeof *id, cudaMemcpyDeviceToHost, ranks[i].stream));
    CUDA(cudaFreeAsync(data[i], ranks[i].stream));
    CUDA(cudaStreamSynchronize(ranks[i].stream));
  }
}

// The last rank joins a communicator of the other ranks.
void larger(Ranks& ranks) {
  constexpr int kFirstWithGrow = 22900;
  int version = 0;
  NCCL(ncclGetVersion(&version));
  if (version < kFirstWithGrow) return;
  Ranks part = ranks, made = ranks;
  const int count = ranks.front().ranks, last = count - 1;
  NCCL(ncclGroupStart());
  for (Rank& rank : part) {
    const int color = rank.rank == last ? kNcclNoColor : 0;
    NCCL(ncclCommSplit(rank.comm, color, rank.rank, &rank.comm, nullptr));
  }
  NCCL(ncclGroupEnd());
  for (int round = 0; round < 2; ++round) {
    ncclUniqueId id{};
    if (part.front().rank == 0) NCCL(ncclCommGetUniqueId(part.front().comm, &id));
    broadcast_id(ranks, &id);
    NCCL(ncclGroupStart());
    for (size_t i = 0; i < part.size(); ++i) {
      const bool is_new = part[i].rank == last, has_id = is_new || part[i].rank == 0;
      NCCL(ncclCommGrow(part[i].comm, count, has_id ? &id : nullptr, is_new ? last : -1,
                        &made[i].comm, nullptr));
    }
    NCCL(ncclGroupEnd());
    for (const Rank& rank : made) check_known(rank);
    check_sum(made);
    check_sum(ranks);
    for (const Rank& rank : made) NCCL(ncclCommDestroy(rank.comm));
  }
  for (const Rank& rank : part) {
    if (rank.comm) NCCL(ncclCommDestroy(rank.comm));
  }
  say(ranks, "larger communicators: right");
}

// Two communicators of the same ranks, whose operations alternate.
void two(Ranks& ranks) {
  Ranks made = ranks;
  NCCL(ncclGroupStart());
  for (size_t i = 0; i < ranks.size(); ++i) {
    NCCL(ncclCommSplit(ranks[i].comm, 0, ranks[i].rank, &made[i].comm, nullptr));
  }
  NCCL(ncclGroupEnd());
  for (Rank& rank : made) {
    CUDA(cudaSetDevice(rank.device));
    CUDA(cudaStreamCreateWithFlags(&rank.stream, cudaStreamNonBlocking));
  }
  const int rounds = 20, count = ranks.front().ranks;
  std::vector<int*> data(ranks.size()), other(ranks.size());
  for (size_t i = 0; i < ranks.size(); ++i) {
    CUDA(cudaSetDevice(ranks[i].device));
    for (int** each : {&data[i], &other[i]}) {
      const int one = 1;
      CUDA(cudaMalloc(each, sizeof(int)));
      CUDA(cudaMemcpyAsync(*each, &one, sizeof one, cudaMemcpyHostToDevice,
                           each == &data[i] ? ranks[i].stream : made[i].stream));
    }
  }
  for (int round = 0; round < rounds; ++round) {
    NCCL(ncclGroupStart());
    for (size_t i = 0; i < ranks.size(); ++i) {
      NCCL(ncclAllReduce(data[i], data[i], 1, ncclInt32, round == 0 ? ncclSum : ncclMax,
                         ranks[i].comm, ranks[i].stream));
      NCCL(ncclAllReduce(other[i], other[i], 1, ncclInt32, round == 0 ? ncclSum : ncclMin,
                         made[i].comm, made[i].stream));
    }
    NCCL(ncclGroupEnd());
  }
  synchronize(ranks);
  synchronize(made);
  for (size_t i = 0; i < ranks.size(); ++i) {
    CUDA(cudaSetDevice(ranks[i].device));
    for (int* each : {data[i], other[i]}) {
      int sum = 0;
      CUDA(cudaMemcpy(&sum, each, sizeof sum, cudaMemcpyDeviceToHost));
      CHECK(sum == count);
      CUDA(cudaFree(each));
    }
  }
  end_ranks(made);
  say(ranks, "two communicators: right");
}

void in_time(ncclResult_t result) { CHECK(result == ncclSuccess || result == ncclInProgress); }

// Parts of communicators whose calls do not block; the last rank is in none.
Ranks not_blocking_parts(const Ranks& ranks) {
  Ranks made = ranks;
  const int last = ranks.front().ranks - 1;
  in_time(ncclGroupStart());
  for (size_t i = 0; i < ranks.size(); ++i) {
    const int color = ranks[i].rank == last ? kNcclNoColor : 0;
    in_time(ncclCommSplit(ranks[i].comm, color, ranks[i].rank, &made[i].comm, nullptr));
  }
  in_time(ncclGroupEnd());
  for (const Rank& rank : ranks) CHECK(outcome(rank.comm) == ncclSuccess);
  for (const Rank& rank : made) {
    CHECK((rank.rank == last) == (rank.comm == nullptr));
    if (rank.comm) CHECK(outcome(rank.comm) == ncclSuccess);
  }
  return made;
}

void end_not_blocking(const Rank& rank) {
  in_time(ncclCommFinalize(rank.comm));
  CHECK(outcome(rank.comm) == ncclSuccess);
  NCCL(ncclCommDestroy(rank.comm));
}

// The ranks of a communicator whose calls do not block. Every call is polled until it has ended.
void not_blocking(Ranks& ranks) {
  Ranks made = ranks;
  ncclConfig_t config;
  config.blocking = 0;
  NCCL(ncclGroupStart());
  for (size_t i = 0; i < ranks.size(); ++i) {
    in_time(ncclCommSplit(ranks[i].comm, 0, ranks[i].rank, &made[i].comm, &config));
  }
  in_time(ncclGroupEnd());
  for (Rank& rank : made) CHECK(outcome(rank.comm) == ncclSuccess);
  for (Rank& rank : ranks) CHECK(outcome(rank.comm) == ncclSuccess);
  const Ranks parts_of_made = not_blocking_parts(made);
  std::vector<int*> data(ranks.size());
  for (size_t i = 0; i < made.size(); ++i) {
    CUDA(cudaSetDevice(made[i].device));
    CUDA(cudaMalloc(&data[i], sizeof(int)));
    CUDA(cudaMemset(data[i], 0, sizeof(int)));
    CUDA(cudaDeviceSynchronize());
  }
  for (int round = 0; round < 5; ++round) {
    in_time(ncclGroupStart());
    for (size_t i = 0; i < made.size(); ++i) {
      in_time(ncclAllReduce(data[i], data[i], 1, ncclInt32, ncclSum, made[i].comm, made[i].stream));
    }
    in_time(ncclGroupEnd());
    for (Rank& rank : made) CHECK(outcome(rank.comm) == ncclSuccess);
    synchronize(made);
  }
  // All ranks have their parts, because the operations have ended.
  for (const Rank& rank : parts_of_made) {
    if (rank.comm) end_not_blocking(rank);
  }
  for (size_t i = 0; i < made.size(); ++i) {
    end_not_blocking(made[i]);
    CUDA(cudaSetDevice(made[i].device));
    CUDA(cudaFree(data[i]));
  }
  say(ranks, "calls that do not block: right");
}

// Programs use memory of ncclMemAlloc as any other memory.
void memory(Ranks& ranks) {
  constexpr size_t kBytes = 3 << 20;
  std::vector<void*> data(ranks.size()), handles(ranks.size());
  for (size_t i = 0; i < ranks.size(); ++i) {
    CUDA(cudaSetDevice(ranks[i].device));
    NCCL(ncclMemAlloc(&data[i], kBytes));
    cudaPointerAttributes attributes;
    CUDA(cudaPointerGetAttributes(&attributes, data[i]));
    CHECK(attributes.type == cudaMemoryTypeDevice && attributes.device == ranks[i].device);
    CUDA(cudaMemsetAsync(data[i], 1, kBytes, ranks[i].stream));
    NCCL(ncclCommRegister(ranks[i].comm, data[i], kBytes, &handles[i]));
  }
  each(ranks, [&](Rank& rank) {
    void* buffer = data[&rank - ranks.data()];
    NCCL(ncclAllReduce(buffer, buffer, kBytes, ncclInt8, ncclSum, rank.comm, rank.stream));
  });
  for (size_t i = 0; i < ranks.size(); ++i) {
    std::vector<char> read(kBytes);
    CUDA(cudaSetDevice(ranks[i].device));
    CUDA(cudaMemcpyAsync(read.data(), data[i], kBytes, cudaMemcpyDeviceToHost, ranks[i].stream));
    CUDA(cudaStreamSynchronize(ranks[i].stream));
    for (const char element : read) CHECK(element == ranks[i].ranks);
    NCCL(ncclCommDeregister(ranks[i].comm, handles[i]));
    NCCL(ncclMemFree(data[i]));
    cudaPointerAttributes attributes;
    CHECK(cudaPointerGetAttributes(&attributes, data[i]) != cudaSuccess ||
          attributes.type == cudaMemoryTypeUnregistered);
    (void)cudaGetLastError();
  }
  say(ranks, "memory of NCCL: right");
}

int main(int argc, char** argv) {
  return run(argc, argv, [](Ranks& ranks) {
    known(ranks);
    parts(ranks);
    smaller(ranks);
    larger(ranks);
    two(ranks);
    not_blocking(ranks);
    memory(ranks);
  });
}
