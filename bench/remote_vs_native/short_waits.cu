// Short work and the wait for it: the time that another process between the program and the GPU
// adds, and the part of that time that cannot be avoided. Prints "name value" lines in
// microseconds, medians.
//
// `short_waits` does the work in this process: natively, or through rcuda. `LEAST=1 short_waits`
// does the work in a second process. That process polls for a word that names the work, does the
// work, waits for its end, and writes a word back. This is the least time of any forwarding over
// shared memory: two hops between two cores. remote_vs_native.py --short runs both, and rcuda, in
// turn.
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <new>
#include <vector>

#include <cuda_runtime.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../cuda_bench.h"

namespace {

__global__ void empty() {}

constexpr const char* kNames[] = {"launch_us",        "pinned_d2h_4b_us",  "pinned_d2h_4k_us",
                                  "pinned_h2d_4k_us", "pinned_d2h_64k_us", "pinned_h2d_64k_us",
                                  "host_function_us"};

// The functions to measure, in the order of kNames. Each returns when its work is done.
std::vector<std::function<void()>> all_work() {
  const size_t most = 64 << 10;
  static cudaStream_t stream;
  static void *device, *pinned;
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CHECK(cudaMalloc(&device, most));
  CHECK(cudaMallocHost(&pinned, most));
  const auto copy = [](size_t bytes, cudaMemcpyKind kind) {
    return [bytes, kind] {
      const bool up = kind == cudaMemcpyHostToDevice;
      CHECK(cudaMemcpyAsync(up ? device : pinned, up ? pinned : device, bytes, kind, stream));
      CHECK(cudaStreamSynchronize(stream));
    };
  };
  const auto launch = [] {
    empty<<<1, 1, 0, stream>>>();
    CHECK(cudaStreamSynchronize(stream));
  };
  const auto call = [] {
    CHECK(cudaLaunchHostFunc(
        stream, [](void*) {}, nullptr));
    CHECK(cudaStreamSynchronize(stream));
  };
  return {launch,
          copy(4, cudaMemcpyDeviceToHost),
          copy(4 << 10, cudaMemcpyDeviceToHost),
          copy(4 << 10, cudaMemcpyHostToDevice),
          copy(most, cudaMemcpyDeviceToHost),
          copy(most, cudaMemcpyHostToDevice),
          call};
}

// Times perform(index) for each kind of work. perform() returns when the work is done.
void measure(const std::function<void(size_t)>& perform) {
  for (size_t i = 0; i < std::size(kNames); ++i) {
    std::vector<double> times;
    for (int round = -2; round < 15; ++round) {
      const auto start = Clock::now();
      for (int repeat = 0; repeat < 500; ++repeat) perform(i);
      if (round >= 0) times.push_back(us_since(start) / 500);
    }
    std::printf("%s %.4g\n", kNames[i], median(times));
  }
}

struct Words {
  alignas(128) std::atomic<uint64_t> asked;  // number of the request << 8 | which work
  alignas(128) std::atomic<uint64_t> done;   // number of the request
};

constexpr uint64_t kEnd = 0xff;

void serve(Words& words) {
  const auto works = all_work();
  words.done.store(1, std::memory_order_release);
  for (uint64_t number = 2;; ++number) {
    uint64_t asked;
    while ((asked = words.asked.load(std::memory_order_acquire)) >> 8 != number) {
    }
    if ((asked & 0xff) == kEnd) std::_Exit(0);
    works[asked & 0xff]();
    words.done.store(number, std::memory_order_release);
  }
}

int measure_least() {
  void* memory =
      mmap(nullptr, sizeof(Words), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return 1;
  auto& words = *new (memory) Words{};
  const pid_t parent = getpid();
  const pid_t server = fork();
  if (server == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() == parent) serve(words);
    return 1;
  }
  const auto served = [&](uint64_t number) {
    while (words.done.load(std::memory_order_acquire) != number) {
    }
  };
  // The second process exits if it finds no GPU.
  while (words.done.load(std::memory_order_acquire) != 1) {
    if (waitpid(server, nullptr, WNOHANG) != 0) return 1;
  }
  uint64_t number = 1;
  measure([&](size_t which) {
    words.asked.store(++number << 8 | which, std::memory_order_release);
    served(number);
  });
  words.asked.store(++number << 8 | kEnd, std::memory_order_release);
  waitpid(server, nullptr, 0);
  return 0;
}

}  // namespace

int main() {
  if (std::getenv("LEAST")) return measure_least();
  const auto works = all_work();
  measure([&](size_t which) { works[which](); });
  return 0;
}
