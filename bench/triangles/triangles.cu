// Counts the triangles of a Kronecker graph on several GPUs, and prints the time of each stage.
//
//   generate   edges, on the first GPU
//   sort       as keys, duplicates and self-loops dropped
//   allocate   memory for the graph, on every GPU
//   orient     directs every edge from the vertex of smaller degree to the other; makes the rows
//   copy       the oriented graph from the first GPU to all others: peer copies
//   count      on every GPU, for its share of the edges: the common neighbours of both ends
//
// A plain CUDA program with one or more devices, run natively or under LD_PRELOAD=librcuda.so.
// --check counts again on the CPU (up to scale 16) and compares.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include <cuda_runtime.h>
#include <thrust/device_ptr.h>
#include <thrust/execution_policy.h>
#include <thrust/sort.h>
#include <thrust/unique.h>

#include "../cuda_bench.h"
#include "graph.h"

namespace {

using triangles::EdgeKey;
using triangles::kNoEdge;

constexpr int kBlock = 256;
constexpr unsigned kWarp = 32;

unsigned blocks_for(uint64_t threads) {
  return static_cast<unsigned>((threads + kBlock - 1) / kBlock);
}

__global__ void generate(EdgeKey* keys, uint64_t count, uint64_t seed, int scale) {
  const uint64_t i = blockIdx.x * static_cast<uint64_t>(blockDim.x) + threadIdx.x;
  if (i < count) keys[i] = triangles::kronecker_edge(seed, i, scale);
}

__global__ void count_degrees(const EdgeKey* keys, uint64_t count, uint32_t* degrees) {
  const uint64_t i = blockIdx.x * static_cast<uint64_t>(blockDim.x) + threadIdx.x;
  if (i >= count) return;
  atomicAdd(&degrees[keys[i] >> 32], 1u);
  atomicAdd(&degrees[static_cast<uint32_t>(keys[i])], 1u);
}

// Directs each edge from the vertex of smaller degree (for equal degrees, from the smaller vertex)
// to the other, so no vertex keeps more than sqrt(2 m) edges.
__global__ void orient(EdgeKey* keys, uint64_t count, const uint32_t* degrees) {
  const uint64_t i = blockIdx.x * static_cast<uint64_t>(blockDim.x) + threadIdx.x;
  if (i >= count) return;
  const uint32_t u = static_cast<uint32_t>(keys[i] >> 32);
  const uint32_t v = static_cast<uint32_t>(keys[i]);
  if (degrees[u] > degrees[v]) keys[i] = static_cast<uint64_t>(v) << 32 | u;
}

// rows[u] is the first edge of u; `targets` are the other ends.
__global__ void split(const EdgeKey* keys, uint64_t count, uint32_t vertices, uint32_t* rows,
                      uint32_t* sources, uint32_t* targets) {
  const uint64_t i = blockIdx.x * static_cast<uint64_t>(blockDim.x) + threadIdx.x;
  if (i >= count) return;
  const uint32_t u = static_cast<uint32_t>(keys[i] >> 32);
  sources[i] = u;
  targets[i] = static_cast<uint32_t>(keys[i]);
  const uint32_t first = i == 0 ? 0 : static_cast<uint32_t>(keys[i - 1] >> 32) + 1;
  for (uint32_t row = first; row <= u; ++row) rows[row] = static_cast<uint32_t>(i);
  if (i + 1 == count) {
    for (uint32_t row = u + 1; row <= vertices; ++row) rows[row] = static_cast<uint32_t>(count);
  }
}

__device__ bool contains(const uint32_t* list, uint32_t count, uint32_t value) {
  uint32_t low = 0;
  while (count > 0) {
    const uint32_t half = count / 2;
    if (list[low + half] < value) {
      low += half + 1;
      count -= half + 1;
    } else if (list[low + half] == value) {
      return true;
    } else {
      count = half;
    }
  }
  return false;
}

// One warp per edge of this GPU's share. The lanes look up the vertices of the shorter list in the
// longer one.
__global__ void count_triangles(const uint32_t* rows, const uint32_t* sources,
                                const uint32_t* targets, uint64_t edges, unsigned share,
                                unsigned shares, unsigned long long* triangles) {
  const uint64_t warp = (blockIdx.x * static_cast<uint64_t>(blockDim.x) + threadIdx.x) / kWarp;
  const unsigned lane = threadIdx.x % kWarp;
  const uint64_t edge = warp * shares + share;
  unsigned found = 0;
  if (edge < edges) {
    uint32_t a = rows[sources[edge]];
    uint32_t a_count = rows[sources[edge] + 1] - a;
    uint32_t b = rows[targets[edge]];
    uint32_t b_count = rows[targets[edge] + 1] - b;
    if (a_count > b_count) {
      const uint32_t list = a;
      const uint32_t count = a_count;
      a = b;
      a_count = b_count;
      b = list;
      b_count = count;
    }
    for (uint32_t i = lane; i < a_count; i += kWarp) {
      found += contains(targets + b, b_count, targets[a + i]);
    }
  }
  for (unsigned offset = kWarp / 2; offset > 0; offset /= 2) {
    found += __shfl_down_sync(0xffffffffu, found, offset);
  }
  if (lane == 0 && found > 0) atomicAdd(triangles, static_cast<unsigned long long>(found));
}

struct Options {
  int scale = 20;
  int edge_factor = 16;
  int gpus = 0;  // 0: all
  uint64_t seed = 1;
  int repeat = 1;
  bool check = false;
};

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    const bool has_value = i + 1 < argc;
    if (name == "--check") {
      options.check = true;
    } else if (name == "--scale" && has_value) {
      options.scale = std::atoi(argv[++i]);
    } else if (name == "--edge-factor" && has_value) {
      options.edge_factor = std::atoi(argv[++i]);
    } else if (name == "--gpus" && has_value) {
      options.gpus = std::atoi(argv[++i]);
    } else if (name == "--seed" && has_value) {
      options.seed = std::strtoull(argv[++i], nullptr, 10);
    } else if (name == "--repeat" && has_value) {
      options.repeat = std::atoi(argv[++i]);
    } else {
      std::fprintf(stderr,
                   "usage: triangles [--scale N] [--edge-factor N] [--gpus N] [--seed N]\n"
                   "                 [--repeat N] [--check]\n");
      std::exit(2);
    }
  }
  // Edges and vertices are counted in 32 bits.
  if (options.scale < 1 || options.scale > 27 || options.edge_factor < 1 ||
      options.edge_factor > 16 || options.repeat < 1) {
    std::fprintf(stderr, "triangles: scale 1 to 27, edge factor 1 to 16, repeat from 1\n");
    std::exit(2);
  }
  return options;
}

// Wall-clock time of the stages; every device is idle in between.
class Stages {
 public:
  explicit Stages(int gpus) : gpus_(gpus) {}
  void begin() { begin_ = Clock::now(); }
  void end(const char* name) {
    for (int gpu = 0; gpu < gpus_; ++gpu) {
      CHECK(cudaSetDevice(gpu));
      CHECK(cudaDeviceSynchronize());
    }
    CHECK(cudaSetDevice(0));
    const double ms = us_since(begin_) * 1e-3;
    times_.emplace_back(name, ms);
    begin();
  }
  void print() const {
    double total = 0;
    for (const auto& [name, ms] : times_) {
      std::printf("  %-9s %10.3f ms\n", name, ms);
      total += ms;
    }
    std::printf("  %-9s %10.3f ms\n", "total", total);
  }

 private:
  const int gpus_;
  Clock::time_point begin_;
  std::vector<std::pair<const char*, double>> times_;
};

struct Graph {
  uint32_t* rows = nullptr;
  uint32_t* sources = nullptr;
  uint32_t* targets = nullptr;
  unsigned long long* triangles = nullptr;
};

void allocate(Graph& graph, uint32_t vertices, uint64_t edges) {
  CHECK(cudaMalloc(&graph.rows, (vertices + 1ull) * sizeof *graph.rows));
  CHECK(cudaMalloc(&graph.sources, edges * sizeof *graph.sources));
  CHECK(cudaMalloc(&graph.targets, edges * sizeof *graph.targets));
  CHECK(cudaMalloc(&graph.triangles, sizeof *graph.triangles));
  CHECK(cudaMemset(graph.triangles, 0, sizeof *graph.triangles));
}

void release(Graph& graph) {
  CHECK(cudaFree(graph.rows));
  CHECK(cudaFree(graph.sources));
  CHECK(cudaFree(graph.targets));
  CHECK(cudaFree(graph.triangles));
}

unsigned long long count_on_gpus(const Options& options, int gpus, Stages& stages,
                                 uint64_t& edges_left) {
  const uint32_t vertices = 1u << options.scale;
  const uint64_t made = static_cast<uint64_t>(vertices) * options.edge_factor;

  CHECK(cudaSetDevice(0));
  EdgeKey* keys = nullptr;
  uint32_t* degrees = nullptr;
  CHECK(cudaMalloc(&keys, made * sizeof *keys));
  CHECK(cudaMalloc(&degrees, vertices * sizeof *degrees));
  CHECK(cudaMemset(degrees, 0, vertices * sizeof *degrees));
  stages.begin();
  generate<<<blocks_for(made), kBlock>>>(keys, made, options.seed, options.scale);
  CHECK(cudaGetLastError());
  stages.end("generate");

  const thrust::device_ptr<EdgeKey> first(keys);
  thrust::sort(thrust::device, first, first + static_cast<std::ptrdiff_t>(made));
  const auto last =
      thrust::unique(thrust::device, first, first + static_cast<std::ptrdiff_t>(made));
  uint64_t edges = static_cast<uint64_t>(last - first);
  EdgeKey largest = 0;
  CHECK(cudaMemcpy(&largest, keys + edges - 1, sizeof largest, cudaMemcpyDeviceToHost));
  if (largest == kNoEdge) --edges;
  stages.end("sort");
  edges_left = edges;
  if (edges == 0) {
    std::fprintf(stderr,
                 "triangles: all edges lead back to where they begin; use a larger --scale\n");
    std::exit(1);
  }

  std::vector<Graph> graphs(static_cast<size_t>(gpus));
  for (int gpu = gpus - 1; gpu >= 0; --gpu) {
    CHECK(cudaSetDevice(gpu));
    allocate(graphs[static_cast<size_t>(gpu)], vertices, edges);
  }
  stages.end("allocate");

  const Graph& origin = graphs[0];
  count_degrees<<<blocks_for(edges), kBlock>>>(keys, edges, degrees);
  orient<<<blocks_for(edges), kBlock>>>(keys, edges, degrees);
  CHECK(cudaGetLastError());
  thrust::sort(thrust::device, first, first + static_cast<std::ptrdiff_t>(edges));
  split<<<blocks_for(edges), kBlock>>>(keys, edges, vertices, origin.rows, origin.sources,
                                       origin.targets);
  CHECK(cudaGetLastError());
  stages.end("orient");

  for (int gpu = 1; gpu < gpus; ++gpu) {
    const Graph& copy = graphs[static_cast<size_t>(gpu)];
    CHECK(cudaMemcpyPeerAsync(copy.rows, gpu, origin.rows, 0, (vertices + 1ull) * 4, nullptr));
    CHECK(cudaMemcpyPeerAsync(copy.sources, gpu, origin.sources, 0, edges * 4, nullptr));
    CHECK(cudaMemcpyPeerAsync(copy.targets, gpu, origin.targets, 0, edges * 4, nullptr));
  }
  stages.end("copy");

  const uint64_t share = (edges + static_cast<uint64_t>(gpus) - 1) / static_cast<uint64_t>(gpus);
  for (int gpu = 0; gpu < gpus; ++gpu) {
    CHECK(cudaSetDevice(gpu));
    const Graph& graph = graphs[static_cast<size_t>(gpu)];
    count_triangles<<<blocks_for(share * kWarp), kBlock>>>(
        graph.rows, graph.sources, graph.targets, edges, static_cast<unsigned>(gpu),
        static_cast<unsigned>(gpus), graph.triangles);
    CHECK(cudaGetLastError());
  }
  unsigned long long total = 0;
  for (int gpu = 0; gpu < gpus; ++gpu) {
    CHECK(cudaSetDevice(gpu));
    unsigned long long part = 0;
    CHECK(cudaMemcpy(&part, graphs[static_cast<size_t>(gpu)].triangles, sizeof part,
                     cudaMemcpyDeviceToHost));
    total += part;
  }
  stages.end("count");

  for (int gpu = 0; gpu < gpus; ++gpu) {
    CHECK(cudaSetDevice(gpu));
    release(graphs[static_cast<size_t>(gpu)]);
  }
  CHECK(cudaSetDevice(0));
  CHECK(cudaFree(keys));
  CHECK(cudaFree(degrees));
  return total;
}

// Counts with the textbook algorithm, for --check. Shares only the edges with the code above.
unsigned long long count_on_cpu(const Options& options) {
  const uint32_t vertices = 1u << options.scale;
  const uint64_t made = static_cast<uint64_t>(vertices) * options.edge_factor;
  std::vector<std::vector<uint32_t>> neighbours(vertices);
  for (uint64_t i = 0; i < made; ++i) {
    const EdgeKey key = triangles::kronecker_edge(options.seed, i, options.scale);
    if (key == kNoEdge) continue;
    neighbours[key >> 32].push_back(static_cast<uint32_t>(key));
  }
  for (auto& list : neighbours) {
    std::sort(list.begin(), list.end());
    list.erase(std::unique(list.begin(), list.end()), list.end());
  }
  unsigned long long total = 0;
  for (const auto& list : neighbours) {
    for (size_t i = 0; i < list.size(); ++i) {
      const auto& other = neighbours[list[i]];
      size_t a = i + 1;
      size_t b = 0;
      while (a < list.size() && b < other.size()) {
        if (list[a] < other[b]) {
          ++a;
        } else if (list[a] > other[b]) {
          ++b;
        } else {
          ++total;
          ++a;
          ++b;
        }
      }
    }
  }
  return total;
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  int gpus = 0;
  CHECK(cudaGetDeviceCount(&gpus));
  if (options.gpus > 0) gpus = std::min(gpus, options.gpus);
  // Making contexts and loading modules are not stages of the algorithm.
  for (int gpu = 0; gpu < gpus; ++gpu) {
    CHECK(cudaSetDevice(gpu));
    CHECK(cudaFree(nullptr));
  }
  unsigned long long triangles_found = 0;
  for (int round = 0; round < options.repeat; ++round) {
    Stages stages(gpus);
    uint64_t edges = 0;
    triangles_found = count_on_gpus(options, gpus, stages, edges);
    std::printf("scale %d on %d GPU%s: %llu edges, %llu triangles\n", options.scale, gpus,
                gpus == 1 ? "" : "s", static_cast<unsigned long long>(edges), triangles_found);
    stages.print();
  }
  if (options.check) {
    if (options.scale > 16) {
      std::fprintf(stderr, "triangles: --check goes up to scale 16\n");
      return 2;
    }
    const unsigned long long expected = count_on_cpu(options);
    std::printf("CPU: %llu triangles: %s\n", expected,
                expected == triangles_found ? "equal" : "DIFFERENT");
    if (expected != triangles_found) return 1;
  }
  return 0;
}
