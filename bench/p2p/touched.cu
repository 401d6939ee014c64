// The cost of a DMA between a GPU and page-locked memory after threads have touched that memory. In
// a copy over sockets, threads touch the memory on both sides; in a copy over shared memory, on
// neither side.
//
//   touched [--threads 4] [--rounds 100]
//
// Prints the median of one transfer in microseconds, from the call until the event that follows it
// has completed. Out: to memory that no thread touches, or that threads have read since its last
// transfer, as send() does. In: from memory that no thread touches, or that threads have just
// written, as recv() does. Each transfer uses the next part of 32 MB, so the threads' caches do not
// always hold the same few lines.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include <cuda_runtime.h>

#include "../cuda_bench.h"

namespace {

constexpr size_t kMemoryBytes = 32u << 20;

enum class Touch { kNothing, kRead, kWrite };

// Threads that read or write a part of some memory, an equal share each.
class Touchers {
 public:
  Touchers(char* memory, int count) : memory_(memory) {
    for (int i = 0; i < count; ++i) threads_.emplace_back([this, i, count] { run(i, count); });
  }
  ~Touchers() {
    over_ = true;
    for (std::thread& thread : threads_) thread.join();
  }
  void touch(Touch how, size_t offset, size_t bytes) {
    how_ = how;
    offset_ = offset;
    bytes_ = bytes;
    done_ = 0;
    ++asked_;
    while (done_ < static_cast<int>(threads_.size())) std::this_thread::yield();
  }

 private:
  void run(int index, int count) {
    std::vector<char> own(kMemoryBytes / count + 1);
    for (int seen = 0; !over_;) {
      if (asked_ == seen) {
        std::this_thread::yield();
        continue;
      }
      seen = asked_;
      const size_t share = bytes_ / count;
      char* const begin = memory_ + offset_ + share * index;
      if (how_ == Touch::kRead) std::memcpy(own.data(), begin, share);
      if (how_ == Touch::kWrite) std::memcpy(begin, own.data(), share);
      ++done_;
    }
  }

  char* const memory_;
  Touch how_ = Touch::kNothing;  // asked_ publishes these three
  size_t offset_ = 0;
  size_t bytes_ = 0;
  std::atomic<int> asked_{0};
  std::atomic<int> done_{0};
  std::atomic<bool> over_{false};
  std::vector<std::thread> threads_;
};

struct Gpu {
  Gpu() {
    CHECK(cudaMalloc(&memory, kMemoryBytes));
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  }
  double copy_us(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) const {
    const Clock::time_point begin = Clock::now();
    CHECK(cudaMemcpyAsync(to, from, bytes, kind, stream));
    CHECK(cudaEventRecord(event, stream));
    await(event);
    return us_since(begin);
  }

  char* memory = nullptr;
  cudaStream_t stream = nullptr;
  cudaEvent_t event = nullptr;
};

// The GPU writes all of the memory first, which takes it out of the processor's caches.
double median_us(const Gpu& gpu, Touchers& touchers, char* memory, cudaMemcpyKind kind, Touch touch,
                 size_t bytes, int rounds) {
  gpu.copy_us(memory, gpu.memory, kMemoryBytes, cudaMemcpyDeviceToHost);
  std::vector<double> times;
  size_t at = 0;
  for (int round = 0; round < rounds; ++round) {
    touchers.touch(touch, at, bytes);
    const bool out = kind == cudaMemcpyDeviceToHost;
    times.push_back(out ? gpu.copy_us(memory + at, gpu.memory + at, bytes, kind)
                        : gpu.copy_us(gpu.memory + at, memory + at, bytes, kind));
    at = (at + bytes) % kMemoryBytes;
  }
  return median(times);
}

}  // namespace

int main(int argc, char** argv) {
  int threads = 4, rounds = 100;
  for (int i = 1; i < argc; i += 2) {
    int* const value = std::string(argv[i]) == "--threads"  ? &threads
                       : std::string(argv[i]) == "--rounds" ? &rounds
                                                            : nullptr;
    if (value && i + 1 < argc) *value = std::atoi(argv[i + 1]);
    if (!value || i + 1 == argc || *value < 1) {
      std::fprintf(stderr, "usage: touched [--threads 4] [--rounds 100]\n");
      return 2;
    }
  }
  const Gpu gpu;
  void* memory = nullptr;
  CHECK(cudaMallocHost(&memory, kMemoryBytes));
  Touchers touchers(static_cast<char*>(memory), threads);
  std::printf("%10s %12s %12s %12s %12s   us\n", "bytes", "out", "out, read", "in", "in, written");
  for (const size_t bytes : {64u << 10, 256u << 10, 512u << 10, 1u << 20, 2u << 20, 4u << 20}) {
    std::printf("%10zu", bytes);
    for (const auto& [kind, touch] : {std::pair(cudaMemcpyDeviceToHost, Touch::kNothing),
                                      std::pair(cudaMemcpyDeviceToHost, Touch::kRead),
                                      std::pair(cudaMemcpyHostToDevice, Touch::kNothing),
                                      std::pair(cudaMemcpyHostToDevice, Touch::kWrite)}) {
      std::printf(" %12.1f",
                  median_us(gpu, touchers, static_cast<char*>(memory), kind, touch, bytes, rounds));
    }
    std::printf("\n");
  }
  return 0;
}
