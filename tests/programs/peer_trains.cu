// Copies between devices that are queued directly one after the other in a stream. Each copy, and
// each kernel between them, must see the result of the previous copy, for all sizes and directions.
// With one device, the copies stay on it.
#include <algorithm>

#include "patterned_memory.h"
#include "program.h"

namespace {

constexpr uint64_t kRoom = 6u << 20;
constexpr uint64_t kSizes[] = {64, 5000, 70000, (1u << 20) + 3, 200, 3u << 20, 65536, 1};

// The expected result of the copies of a train, computed on the host.
struct Replay {
  std::vector<unsigned char> source, destination;

  void copy(uint64_t to, uint64_t from, uint64_t n) {
    std::copy_n(source.begin() + from, n, destination.begin() + to);
  }
  void copy_back(uint64_t to, uint64_t from, uint64_t n) {
    std::copy_n(destination.begin() + from, n, source.begin() + to);
  }
};

struct Pair {
  Pair(int from, int to) : source(from, kRoom), destination(to, kRoom) {
    source.fill_with(3, nullptr);
    destination.fill_with(8, nullptr);
    for (const Memory* memory : {&source, &destination}) {
      CUDA(cudaSetDevice(memory->device));
      CUDA(cudaDeviceSynchronize());
    }
    replay = {source.values(), destination.values()};
    CUDA(cudaSetDevice(from));
  }
  void copy(uint64_t to, uint64_t from, uint64_t n, cudaStream_t stream) {
    CUDA(cudaMemcpyPeerAsync(destination.data + to, destination.device, source.data + from,
                             source.device, n, stream));
    replay.copy(to, from, n);
  }
  void copy_back(uint64_t to, uint64_t from, uint64_t n, cudaStream_t stream) {
    CUDA(cudaMemcpyPeerAsync(source.data + to, source.device, destination.data + from,
                             destination.device, n, stream));
    replay.copy_back(to, from, n);
  }
  void add_to_source(uint64_t n, cudaStream_t stream) {
    CUDA(cudaSetDevice(source.device));
    add<<<16, 128, 0, stream>>>(source.data, n, 5);
    CUDA(cudaGetLastError());
    for (uint64_t i = 0; i < n; ++i) replay.source[i] += 5;
  }
  void check() const {
    CHECK(source.values() == replay.source);
    CHECK(destination.values() == replay.destination);
  }

  Memory source, destination;
  Replay replay;
};

// Returns a place that overlaps those of the previous copies.
uint64_t place(int i, uint64_t n) { return (i * 40961ull) % (kRoom - n + 1); }

void one_after_another(int from, int to, cudaStream_t stream) {
  Pair pair(from, to);
  for (int i = 0; i < 200; ++i) {
    const uint64_t n = kSizes[i % 8];
    pair.copy(place(i, n), place(3 * i + 1, n), n, stream);
  }
  CUDA(cudaStreamSynchronize(stream));
  EXPECT(cudaSuccess, cudaStreamQuery(stream));
  pair.check();
}

void to_and_fro(int from, int to, cudaStream_t stream) {
  Pair pair(from, to);
  for (int i = 0; i < 60; ++i) {
    const uint64_t n = kSizes[i % 8];
    pair.copy(place(i, n), place(i + 7, n), n, stream);
    pair.copy_back(place(i + 2, n), place(i, n), n, stream);
  }
  CUDA(cudaStreamSynchronize(stream));
  pair.check();
}

// In a stream of the source's device: a copy reads the result of the kernel before it, and not of
// the kernel after it.
void between_kernels(int from, int to, cudaStream_t stream) {
  Pair pair(from, to);
  for (int i = 0; i < 30; ++i) {
    for (int k = 0; k < i % 4; ++k) {
      const uint64_t n = kSizes[(i + k) % 8];
      pair.copy(place(i + k, n), place(k, n), n, stream);
    }
    pair.add_to_source(300000, stream);
  }
  pair.copy(0, 0, kRoom, stream);
  CUDA(cudaStreamSynchronize(stream));
  pair.check();
}

// A train in one stream waits, by an event in its middle, for a train in another stream.
void two_trains(int from, int to, cudaStream_t first, cudaStream_t second) {
  Pair pair(from, to);
  cudaEvent_t event;
  CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  for (int i = 0; i < 40; ++i) {
    const uint64_t n = kSizes[i % 8];
    pair.copy(place(i, n), place(i, n), n, first);
  }
  CUDA(cudaEventRecord(event, first));
  CUDA(cudaStreamWaitEvent(second, event, 0));
  for (int i = 0; i < 40; ++i) {
    const uint64_t n = kSizes[i % 8];
    pair.copy_back(place(2 * i, n), place(i, n), n, second);
  }
  CUDA(cudaStreamSynchronize(second));
  pair.check();
  CUDA(cudaEventDestroy(event));
}

}  // namespace

int main() {
  int devices = 0;
  CUDA(cudaGetDeviceCount(&devices));
  std::vector<std::vector<cudaStream_t>> streams(devices);
  for (int d = 0; d < devices; ++d) {
    CUDA(cudaSetDevice(d));
    streams[d].resize(3);
    CUDA(cudaStreamCreateWithFlags(&streams[d][1], cudaStreamNonBlocking));
    CUDA(cudaStreamCreate(&streams[d][2]));
  }
  const auto all_pairs = [&](const char* what, auto test) {
    for (int from = 0; from < devices; ++from) {
      for (const cudaStream_t& stream : streams[from]) {
        CUDA(cudaSetDevice(from));
        test(from, (from + 1) % devices, stream);
      }
    }
    std::printf("%s\n", what);
  };
  all_pairs("one after another", &one_after_another);
  all_pairs("in the destination's stream",
            [&](int from, int to, cudaStream_t) { one_after_another(from, to, streams[to][1]); });
  all_pairs("to and fro", &to_and_fro);
  all_pairs("between kernels", &between_kernels);
  all_pairs("two trains", [&](int from, int to, cudaStream_t stream) {
    two_trains(from, to, streams[from][1], stream);
  });
}
