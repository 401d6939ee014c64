// Collectives in CUDA graphs: captured between kernels, launched several times, cloned, and mixed
// with operations that are not captured.
#include "ranks.h"

constexpr int kCount = 512;

__global__ void add(int* data, int amount) { data[threadIdx.x] += amount; }

struct Captured {
  Rank* rank;
  int* data;
  int* gathered;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t launched = nullptr;
};

// The work of one launch: each element becomes the largest of (its value + rank + 1) over all
// ranks, and all ranks gather the results.
void enqueue(Captured& captured) {
  Rank& rank = *captured.rank;
  add<<<1, kCount, 0, rank.stream>>>(captured.data, rank.rank + 1);
  CUDA(cudaGetLastError());
}

void capture(Ranks& ranks, std::vector<Captured>& all) {
  for (Captured& each : all) {
    CUDA(cudaSetDevice(each.rank->device));
    CUDA(cudaStreamBeginCapture(each.rank->stream, cudaStreamCaptureModeThreadLocal));
    enqueue(each);
  }
  each(ranks, [&](Rank& rank) {
    Captured& mine = all[&rank - ranks.data()];
    NCCL(ncclAllReduce(mine.data, mine.data, kCount, ncclInt32, ncclMax, rank.comm, rank.stream));
  });
  each(ranks, [&](Rank& rank) {  // operations of one group have no order
    Captured& mine = all[&rank - ranks.data()];
    NCCL(ncclAllGather(mine.data, mine.gathered, kCount, ncclInt32, rank.comm, rank.stream));
  });
  const int count = ranks.front().ranks;
  each(ranks, [&](Rank& rank) {  // passes the first part to the next rank
    Captured& mine = all[&rank - ranks.data()];
    NCCL(
        ncclSend(mine.gathered + 1, 1, ncclInt32, (rank.rank + 1) % count, rank.comm, rank.stream));
    NCCL(ncclRecv(mine.gathered, 1, ncclInt32, (rank.rank + count - 1) % count, rank.comm,
                  rank.stream));
  });
  for (Captured& each : all) {
    CUDA(cudaSetDevice(each.rank->device));
    add<<<1, kCount, 0, each.rank->stream>>>(each.gathered, 0);
    CUDA(cudaStreamEndCapture(each.rank->stream, &each.graph));
    size_t nodes = 0;
    CUDA(cudaGraphGetNodes(each.graph, nullptr, &nodes));
    CHECK(nodes >= 3);  // two kernels, and those of the library
    std::vector<cudaGraphNode_t> list(nodes);
    CUDA(cudaGraphGetNodes(each.graph, list.data(), &nodes));
    int kernels = 0;
    for (cudaGraphNode_t node : list) {
      cudaGraphNodeType type;
      // The runtime has no name for some types of the driver, such as operations on words of
      // memory.
      kernels +=
          cudaGraphNodeGetType(node, &type) == cudaSuccess && type == cudaGraphNodeTypeKernel;
    }
    (void)cudaGetLastError();
    CHECK(kernels >= 2);
  }
}

void check_values(std::vector<Captured>& all, int expected) {
  for (Captured& each : all) {
    CUDA(cudaSetDevice(each.rank->device));
    std::vector<int> data(kCount), gathered(static_cast<size_t>(kCount) * each.rank->ranks);
    CUDA(cudaMemcpyAsync(data.data(), each.data, data.size() * sizeof(int), cudaMemcpyDeviceToHost,
                         each.rank->stream));
    CUDA(cudaMemcpyAsync(gathered.data(), each.gathered, gathered.size() * sizeof(int),
                         cudaMemcpyDeviceToHost, each.rank->stream));
    CUDA(cudaStreamSynchronize(each.rank->stream));
    for (const int value : data) CHECK(value == expected);
    for (const int value : gathered) CHECK(value == expected);
  }
}

void launch(std::vector<Captured>& all) {
  for (Captured& each : all) {
    CUDA(cudaSetDevice(each.rank->device));
    CUDA(cudaGraphLaunch(each.launched, each.rank->stream));
  }
}

void graphs(Ranks& ranks, bool after_first_use) {
  const int count = ranks.front().ranks;
  std::vector<Captured> all;
  for (Rank& rank : ranks) {
    CUDA(cudaSetDevice(rank.device));
    Captured& made = all.emplace_back(Captured{&rank, nullptr, nullptr});
    CUDA(cudaMalloc(&made.data, kCount * sizeof(int)));
    CUDA(cudaMalloc(&made.gathered, kCount * sizeof(int) * count));
    CUDA(cudaMemsetAsync(made.data, 0, kCount * sizeof(int), rank.stream));
    CUDA(cudaStreamSynchronize(rank.stream));
  }
  capture(ranks, all);
  for (Captured& each : all) {
    CUDA(cudaSetDevice(each.rank->device));
    CUDA(cudaGraphInstantiate(&each.launched, each.graph, 0));
  }
  int expected = 0;
  for (int round = 0; round < 3; ++round) {
    launch(all);
    launch(all);
    check_values(all, expected += 2 * count);
  }
  // Between launches, an operation that is not captured.
  each(ranks, [&](Rank& rank) {
    Captured& mine = all[&rank - ranks.data()];
    NCCL(ncclAllReduce(mine.data, mine.data, kCount, ncclInt32, ncclMin, rank.comm, rank.stream));
  });
  launch(all);
  check_values(all, expected += count);
  // A copy of the graph, after the graph itself was destroyed.
  for (Captured& each : all) {
    cudaGraph_t copy;
    CUDA(cudaSetDevice(each.rank->device));
    CUDA(cudaGraphClone(&copy, each.graph));
    CUDA(cudaGraphExecDestroy(each.launched));
    CUDA(cudaGraphDestroy(each.graph));
    CUDA(cudaGraphInstantiate(&each.launched, copy, 0));
    CUDA(cudaGraphDestroy(copy));
  }
  launch(all);
  check_values(all, expected += count);
  for (Captured& each : all) {
    CUDA(cudaGraphExecDestroy(each.launched));
    CUDA(cudaFree(each.data));
    CUDA(cudaFree(each.gathered));
  }
  say(ranks, after_first_use ? "graphs: right" : "graphs as the first use: right");
}

int main(int argc, char** argv) {
  return run(argc, argv, [](Ranks& ranks) {
    graphs(ranks, false);
    graphs(ranks, true);
  });
}
