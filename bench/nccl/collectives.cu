// Times of NCCL's operations by size, in a process for each rank. Opens libnccl.so.2 by name, as
// frameworks do.
//
//   collectives --rank R --ranks N --id FILE [--device D] [--min 8] [--max 1G] [--factor 8]
//               [--seconds 0.1]
//               [--operations all_reduce,all_gather,reduce_scatter,alltoall,sendrecv]
//
// The ranks meet through FILE, which must not exist before. Rank 0 prints the columns that NVIDIA's
// nccl-tests print for operations out of place, with the same definitions: the size is that of the
// larger buffer, algorithm bandwidth is size / time, and bus bandwidth is the rate of each link if
// a ring did the operation. Operations are queued without waits in between. `errors` counts the
// elements of all ranks that are wrong after the last operation.
#include <cmath>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>

#include <dlfcn.h>
#include <unistd.h>

#include "../../tests/support/nccl/nccl_api.h"
#include "../cuda_bench.h"

namespace {

void* library() {
  static void* const opened = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  if (!opened) {
    std::fprintf(stderr, "collectives: %s\n", dlerror());
    std::exit(1);
  }
  return opened;
}

template <typename Function>
Function* symbol(Function*, const char* name) {
  void* const found = dlsym(library(), name);
  if (!found) {
    std::fprintf(stderr, "collectives: libnccl.so.2 has no %s\n", name);
    std::exit(1);
  }
  return reinterpret_cast<Function*>(found);
}

#define NCCL(name, ...)                                                                       \
  do {                                                                                        \
    static auto* const function_ = symbol(static_cast<decltype(::name)*>(nullptr), #name);    \
    const ncclResult_t result_ = function_(__VA_ARGS__);                                      \
    if (result_ != ncclSuccess) {                                                             \
      std::fprintf(stderr, "collectives: %s returns %d\n", #name, static_cast<int>(result_)); \
      std::exit(1);                                                                           \
    }                                                                                         \
  } while (0)

struct Ranks {
  int rank = 0, ranks = 1, device = 0;
  std::string id;
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
};

// Element `index` of the data that `rank` sends. Sums over eight ranks are exact.
__host__ __device__ float value(int rank, size_t index) {
  return static_cast<float>((rank + 1) * (index % 13 + 1));
}

__global__ void fill(float* data, size_t count, int rank) {
  const size_t step = static_cast<size_t>(gridDim.x) * blockDim.x;
  for (size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x; i < count; i += step)
    data[i] = value(rank, i);
}

// The expected contents of an operation's result.
enum class Result { kSum, kPartOfSum, kPartOfEach, kPartForMe, kOfNeighbour };

__global__ void check(const float* data, size_t count, size_t part, Result result, int rank,
                      int ranks, float* errors) {
  const size_t step = static_cast<size_t>(gridDim.x) * blockDim.x;
  for (size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x; i < count;
       i += step) {
    const size_t place = result == Result::kPartOfSum ? rank * part + i : i;
    float expected = 0;
    if (result == Result::kSum || result == Result::kPartOfSum) {
      for (int each = 0; each < ranks; ++each) expected += value(each, place);
    } else if (result == Result::kPartOfEach) {
      expected = value(static_cast<int>(i / part), i % part);
    } else if (result == Result::kPartForMe) {
      expected = value(static_cast<int>(i / part), rank * part + i % part);
    } else {
      expected = value((rank + ranks - 1) % ranks, i);
    }
    if (data[i] != expected) atomicAdd(errors, 1.0f);
  }
}

struct Operation {
  const char* name;
  Result result;
  double (*bus)(double ranks);     // bus bandwidth / algorithm bandwidth
  bool sends_part, receives_part;  // true: one rank's part of the data; false: all of it
  void (*call)(const Ranks&, const float* from, float* to, size_t count, size_t part);
};

void send_to_all(const Ranks& r, const float* from, float* to, size_t, size_t part) {
  NCCL(ncclGroupStart);
  for (int peer = 0; peer < r.ranks; ++peer) {
    NCCL(ncclSend, from + peer * part, part, ncclFloat32, peer, r.comm, r.stream);
    NCCL(ncclRecv, to + peer * part, part, ncclFloat32, peer, r.comm, r.stream);
  }
  NCCL(ncclGroupEnd);
}

void send_to_neighbour(const Ranks& r, const float* from, float* to, size_t count, size_t) {
  NCCL(ncclGroupStart);
  NCCL(ncclSend, from, count, ncclFloat32, (r.rank + 1) % r.ranks, r.comm, r.stream);
  NCCL(ncclRecv, to, count, ncclFloat32, (r.rank + r.ranks - 1) % r.ranks, r.comm, r.stream);
  NCCL(ncclGroupEnd);
}

double ring(double ranks) { return (ranks - 1) / ranks; }

const Operation kOperations[] = {
    {"all_reduce", Result::kSum, [](double ranks) { return 2 * ring(ranks); }, false, false,
     [](const Ranks& r, const float* from, float* to, size_t count, size_t) {
       NCCL(ncclAllReduce, from, to, count, ncclFloat32, ncclSum, r.comm, r.stream);
     }},
    {"all_gather", Result::kPartOfEach, ring, true, false,
     [](const Ranks& r, const float* from, float* to, size_t, size_t part) {
       NCCL(ncclAllGather, from, to, part, ncclFloat32, r.comm, r.stream);
     }},
    {"reduce_scatter", Result::kPartOfSum, ring, false, true,
     [](const Ranks& r, const float* from, float* to, size_t, size_t part) {
       NCCL(ncclReduceScatter, from, to, part, ncclFloat32, ncclSum, r.comm, r.stream);
     }},
    {"alltoall", Result::kPartForMe, ring, false, false, send_to_all},
    {"sendrecv", Result::kOfNeighbour, [](double) { return 1.0; }, false, false, send_to_neighbour},
};

struct Memory {
  float *from, *to, *word;
};

// Reduces the ranks' values `mine` by `op` (maximum or sum).
float agree(const Ranks& r, const Memory& memory, float mine, ncclRedOp_t op) {
  CHECK(cudaMemcpyAsync(memory.word, &mine, sizeof mine, cudaMemcpyHostToDevice, r.stream));
  NCCL(ncclAllReduce, memory.word, memory.word, 1, ncclFloat32, op, r.comm, r.stream);
  CHECK(cudaMemcpyAsync(&mine, memory.word, sizeof mine, cudaMemcpyDeviceToHost, r.stream));
  CHECK(cudaStreamSynchronize(r.stream));
  return mine;
}

double time_of(const Ranks& r, const Operation& operation, const Memory& memory, size_t count,
               size_t part, int times) {
  CHECK(cudaStreamSynchronize(r.stream));
  const auto begin = Clock::now();
  for (int i = 0; i < times; ++i) operation.call(r, memory.from, memory.to, count, part);
  CHECK(cudaStreamSynchronize(r.stream));
  return us_since(begin) / times;
}

// Returns the number of wrong elements, of all ranks.
float measure(const Ranks& r, const Operation& operation, const Memory& memory, size_t bytes,
              double seconds) {
  const size_t part = std::max<size_t>(1, bytes / sizeof(float) / r.ranks), count = part * r.ranks;
  const size_t received = operation.receives_part ? part : count;
  fill<<<256, 256, 0, r.stream>>>(memory.from, operation.sends_part ? part : count, r.rank);
  CHECK(cudaMemsetAsync(memory.to, 0xff, received * sizeof(float), r.stream));
  time_of(r, operation, memory, count, part, 1);
  const double once =
      agree(r, memory, static_cast<float>(time_of(r, operation, memory, count, part, 2)), ncclMax);
  const int times = static_cast<int>(std::min(200.0, std::max(2.0, seconds * 1e6 / once)));
  const double us = agree(
      r, memory, static_cast<float>(time_of(r, operation, memory, count, part, times)), ncclMax);
  CHECK(cudaMemsetAsync(memory.word, 0, sizeof(float), r.stream));
  check<<<256, 256, 0, r.stream>>>(memory.to, received, part, operation.result, r.rank, r.ranks,
                                   memory.word);
  float errors = 0;
  CHECK(cudaMemcpyAsync(&errors, memory.word, sizeof errors, cudaMemcpyDeviceToHost, r.stream));
  CHECK(cudaStreamSynchronize(r.stream));
  errors = agree(r, memory, errors, ncclSum);
  if (r.rank != 0) return errors;
  const double size = static_cast<double>(count * sizeof(float)), bandwidth = size / us / 1e3;
  std::printf("%-14s %12zu %12zu %8s %12.1f %10.3f %10.3f %8.0f\n", operation.name,
              count * sizeof(float), operation.sends_part || operation.receives_part ? part : count,
              "float", us, bandwidth, bandwidth * operation.bus(r.ranks), errors);
  std::fflush(stdout);
  return errors;
}

void join(Ranks& r) {
  ncclUniqueId id{};
  CHECK(cudaSetDevice(r.device));
  CHECK(cudaStreamCreateWithFlags(&r.stream, cudaStreamNonBlocking));
  if (r.rank == 0) {
    NCCL(ncclGetUniqueId, &id);
    std::ofstream(r.id + ".new").write(id.internal, sizeof id.internal);
    if (std::rename((r.id + ".new").c_str(), r.id.c_str()) != 0) std::exit(1);
  } else {
    while (access(r.id.c_str(), R_OK) != 0)
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    std::ifstream(r.id).read(id.internal, sizeof id.internal);
  }
  NCCL(ncclCommInitRank, &r.comm, r.ranks, id, r.rank);
}

size_t size_from(const char* text) {
  char* unit = nullptr;
  const double number = std::strtod(text, &unit);
  const char* const units = "KMG";
  const char* const found = *unit ? std::strchr(units, *unit) : nullptr;
  return static_cast<size_t>(number * std::pow(1024.0, found ? found - units + 1 : 0));
}

}  // namespace

int main(int argc, char** argv) {
  Ranks r;
  size_t least = 8, most = size_t{1} << 30;
  double factor = 8, seconds = 0.1;
  std::string operations;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string option = argv[i], text = argv[i + 1];
    if (option == "--rank") r.rank = std::atoi(text.c_str());
    if (option == "--ranks") r.ranks = std::atoi(text.c_str());
    if (option == "--device") r.device = std::atoi(text.c_str());
    if (option == "--id") r.id = text;
    if (option == "--min") least = size_from(text.c_str());
    if (option == "--max") most = size_from(text.c_str());
    if (option == "--factor") factor = std::strtod(text.c_str(), nullptr);
    if (option == "--seconds") seconds = std::strtod(text.c_str(), nullptr);
    if (option == "--operations") operations = "," + text + ",";
  }
  if (r.id.empty() || factor <= 1 || r.rank >= r.ranks) {
    std::fprintf(stderr, "usage: collectives --rank R --ranks N --id FILE [...]\n");
    return 2;
  }
  join(r);
  int version = 0;
  NCCL(ncclGetVersion, &version);
  Memory memory{};
  const size_t bytes = std::max(most, sizeof(float) * r.ranks);
  CHECK(cudaMalloc(&memory.from, bytes));
  CHECK(cudaMalloc(&memory.to, bytes));
  CHECK(cudaMalloc(&memory.word, sizeof(float)));
  if (r.rank == 0) {
    std::printf("# NCCL %d, %d ranks\n%-14s %12s %12s %8s %12s %10s %10s %8s\n", version, r.ranks,
                "# operation", "size_B", "count", "type", "time_us", "algbw_GB/s", "busbw_GB/s",
                "errors");
  }
  float errors = 0;
  for (const Operation& operation : kOperations) {
    if (!operations.empty() &&
        operations.find("," + std::string(operation.name) + ",") == std::string::npos)
      continue;
    for (double size = static_cast<double>(least); size <= static_cast<double>(most);
         size *= factor) {
      errors += measure(r, operation, memory, static_cast<size_t>(size), seconds);
    }
  }
  CHECK(cudaStreamSynchronize(r.stream));
  NCCL(ncclCommDestroy, r.comm);
  return errors == 0 ? 0 : 1;
}
