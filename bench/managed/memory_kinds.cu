// One exchange of two inputs and a result between host and kernel, by the kind of memory and its
// size: the host writes the inputs, a kernel reads them and writes the result, the host reads it.
// Prints "name value" lines: microseconds for one exchange (median of 20). The way the program is
// started decides whether its device is local or remote.
//
//   memory_kinds [largest matrix in bytes, default 16777216]
//
// For the kinds with _async, the host queues all work and then waits once. For
// managed_attached_async, a first kernel also holds the stream: it ends when the host has queued
// the other work and writes to page-locked memory.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <cuda_runtime.h>

#include "../cuda_bench.h"

namespace {

constexpr int kRounds = 20;

__global__ void hold(const volatile unsigned* latch) {
  while (*latch == 0) {
  }
}

__global__ void combine(float* c, const float* a, const float* b, size_t count) {
  for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
    c[i] = a[i] + 2 * b[i];
}

enum class Kind {
  kAttached,
  kAttachedAsync,
  kManaged,
  kZeroCopy,
  kPageable,
  kPageableAsync,
  kLocked,
  kLockedAsync
};

constexpr struct KindOfMemory {
  Kind kind;
  const char* name;
  bool is_async, is_copied;
} kKinds[] = {
    {Kind::kAttached, "managed_attached", false, false},
    {Kind::kAttachedAsync, "managed_attached_async", true, false},
    {Kind::kManaged, "managed", false, false},
    {Kind::kZeroCopy, "mapped", false, false},
    {Kind::kPageable, "pageable", false, true},
    {Kind::kPageableAsync, "pageable_async", true, true},
    {Kind::kLocked, "page_locked", false, true},
    {Kind::kLockedAsync, "page_locked_async", true, true},
};

struct Matrices {
  float *host[3] = {}, *device[3] = {};  // the result first
};

bool is_managed(Kind kind) {
  return kind == Kind::kAttached || kind == Kind::kAttachedAsync || kind == Kind::kManaged;
}

Matrices allocate(Kind kind, size_t bytes) {
  Matrices all;
  for (int i = 0; i < 3; ++i) {
    void* host = nullptr;
    if (is_managed(kind)) {
      CHECK(cudaMallocManaged(&host, bytes,
                              kind == Kind::kManaged ? cudaMemAttachGlobal : cudaMemAttachHost));
      all.device[i] = static_cast<float*>(host);
    } else if (kind == Kind::kPageable || kind == Kind::kPageableAsync) {
      host = std::malloc(bytes);
      CHECK(cudaMalloc(&all.device[i], bytes));
    } else {
      CHECK(cudaMallocHost(&host, bytes));
      if (kind == Kind::kZeroCopy) {
        all.device[i] = static_cast<float*>(host);
      } else {
        CHECK(cudaMalloc(&all.device[i], bytes));
      }
    }
    all.host[i] = static_cast<float*>(host);
    std::memset(host, 0, bytes);
  }
  return all;
}

void release(Kind kind, const Matrices& all) {
  for (int i = 0; i < 3; ++i) {
    if (all.device[i] != all.host[i] || is_managed(kind)) CHECK(cudaFree(all.device[i]));
    if (kind == Kind::kPageable || kind == Kind::kPageableAsync) std::free(all.host[i]);
    if (kind == Kind::kZeroCopy || kind == Kind::kLocked || kind == Kind::kLockedAsync) {
      CHECK(cudaFreeHost(all.host[i]));
    }
  }
}

void attach(Kind kind, const Matrices& all, unsigned where, cudaStream_t stream) {
  if (kind != Kind::kAttached && kind != Kind::kAttachedAsync) return;
  for (float* memory : all.device) CHECK(cudaStreamAttachMemAsync(stream, memory, 0, where));
  if (kind == Kind::kAttached) CHECK(cudaStreamSynchronize(stream));
}

// Ends the process if the result is wrong.
void exchange(const KindOfMemory& what, const Matrices& all, const std::vector<float>& values,
              unsigned* latch, cudaStream_t stream) {
  const size_t bytes = values.size() * sizeof(float);
  std::memcpy(all.host[1], values.data(), bytes);
  std::memcpy(all.host[2], values.data(), bytes);
  const bool is_held = what.kind == Kind::kAttachedAsync;
  if (is_held) {
    *latch = 0;
    hold<<<1, 1, 0, stream>>>(latch);
  }
  attach(what.kind, all, cudaMemAttachGlobal, stream);
  for (int i = 1; what.is_copied && i < 3; ++i) {
    CHECK(cudaMemcpyAsync(all.device[i], all.host[i], bytes, cudaMemcpyHostToDevice, stream));
    if (!what.is_async) CHECK(cudaStreamSynchronize(stream));
  }
  combine<<<256, 256, 0, stream>>>(all.device[0], all.device[1], all.device[2], values.size());
  CHECK(cudaGetLastError());
  if (!what.is_async) CHECK(cudaStreamSynchronize(stream));
  attach(what.kind, all, cudaMemAttachHost, stream);
  if (what.is_copied)
    CHECK(cudaMemcpyAsync(all.host[0], all.device[0], bytes, cudaMemcpyDeviceToHost, stream));
  if (is_held) *latch = 1;
  CHECK(cudaStreamSynchronize(stream));
  for (size_t i = 0; i < values.size(); ++i) {
    if (all.host[0][i] == 3 * values[i]) continue;
    std::fprintf(stderr, "%s: a wrong result at %zu\n", what.name, i);
    std::exit(1);
  }
}

}  // namespace

int main(int count, char** arguments) {
  const size_t largest = count > 1 ? std::strtoull(arguments[1], nullptr, 10) : 16 << 20;
  unsigned* latch = nullptr;
  cudaStream_t stream;
  CHECK(cudaMallocHost(&latch, sizeof *latch));
  CHECK(cudaStreamCreate(&stream));
  for (size_t bytes = 4096; bytes <= largest; bytes *= 4) {
    for (const KindOfMemory& what : kKinds) {
      const Matrices all = allocate(what.kind, bytes);
      std::vector<double> times;
      for (int round = 0; round < kRounds; ++round) {
        const std::vector<float> values(bytes / sizeof(float), static_cast<float>(round + 1));
        const auto start = Clock::now();
        exchange(what, all, values, latch, stream);
        times.push_back(us_since(start));
      }
      std::printf("%s_%zu_kb_us %.5g\n", what.name, bytes >> 10, median(times));
      std::fflush(stdout);
      release(what.kind, all);
    }
  }
  CHECK(cudaStreamDestroy(stream));
  CHECK(cudaFreeHost(latch));
}
