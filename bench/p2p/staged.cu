// The shortest time of a copy between two GPUs that is staged in host memory, on this machine: only
// the two DMA legs, in chunks, coupled in two ways.
//
//   staged [--rounds 100]
//   staged --settle SECONDS [--rounds 5]
//
//   events    one process with both GPUs; the GPUs wait for each other's events
//   hand-over two processes with a GPU each, like two servers; a thread polls for the end of each
//             chunk's copy out and then hands the chunk over in shared memory
//
// Prints the median of each in microseconds by size and chunk, alternating with cudaMemcpyPeer with
// peer access off. An engine between two workers cannot be faster than `hand-over`, and cannot use
// `events`, because its GPUs belong to two processes (CUDA's events between processes are slower
// than both). With one GPU, source and destination are on that GPU, and only the driver's copy does
// not use the bus.
//
// With --settle, prints the times of the first and the second copy after a pause of SECONDS. During
// the pause the GPUs are idle, and the threads of `hand-over` keep polling. This shows the extra
// cost of the first copy when no thread has to wake up. `kept warm` is `hand-over` whose threads
// copied 4 KB over the bus every millisecond of the pause.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <cuda_runtime.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../cuda_bench.h"

namespace {

constexpr size_t kMostBytes = 16u << 20;
constexpr size_t kLeastChunk = 64u << 10;
constexpr size_t kMostChunks = 32;
constexpr double kWarmEveryUs = 1000;
constexpr size_t kWarmBytes = 4096;

// Shared by the two processes, in addition to the staging buffer.
struct Shared {
  std::atomic<bool> destination_ready{false};
  std::atomic<bool> over{false};
  std::atomic<bool> warm{false};  // both keep their bus warm (keep_warm())
  std::atomic<size_t> bytes{0}, chunk{0};
  std::atomic<uint64_t> asked{0}, done{0};  // copies
  std::atomic<uint64_t> staged{0};          // chunks
};

template <typename T>
T* map_shared(size_t bytes) {
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (memory == MAP_FAILED) {
    std::perror("staged: mmap");
    std::_Exit(1);
  }
  return static_cast<T*>(memory);
}

// One GPU's part: memory, a stream, and an event for each chunk.
struct Side {
  explicit Side(int of) : device(of) {
    CHECK(cudaSetDevice(device));
    CHECK(cudaMalloc(&memory, kMostBytes));
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (cudaEvent_t& event : events) {
      CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    }
  }
  void use() const { CHECK(cudaSetDevice(device)); }
  void copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, size_t chunk) const {
    CHECK(cudaMemcpyAsync(to, from, bytes, kind, stream));
    CHECK(cudaEventRecord(events[chunk], stream));
  }
  // Called without pause. Copies a little in `direction` if the last such copy is kWarmEveryUs ago.
  void keep_warm(char* staging, cudaMemcpyKind direction, Clock::time_point& last) const {
    if (us_since(last) < kWarmEveryUs) return;
    use();
    if (direction == cudaMemcpyDeviceToHost) {
      copy(staging, memory, kWarmBytes, direction, 0);
    } else {
      copy(memory, staging, kWarmBytes, direction, 0);
    }
    await(events[0]);
    last = Clock::now();
  }

  const int device;
  char* memory = nullptr;
  cudaStream_t stream = nullptr;
  cudaEvent_t events[kMostChunks];
};

double by_events(const Side& from, const Side& to, char* staging, size_t bytes, size_t chunk) {
  const Clock::time_point begin = Clock::now();
  size_t i = 0;
  for (size_t at = 0; at < bytes; at += chunk, ++i) {
    const size_t part = std::min(chunk, bytes - at);
    from.use();
    from.copy(staging + at, from.memory + at, part, cudaMemcpyDeviceToHost, i);
    to.use();
    CHECK(cudaStreamWaitEvent(to.stream, from.events[i], 0));
    to.copy(to.memory + at, staging + at, part, cudaMemcpyHostToDevice, i);
  }
  await(to.events[i - 1]);
  return us_since(begin);
}

// Runs in the source's process. Polls for the end of chunks while it queues others.
double by_hand_over(const Side& from, char* staging, Shared& shared, size_t bytes, size_t chunk) {
  from.use();
  shared.bytes = bytes;
  shared.chunk = chunk;
  const uint64_t before = shared.staged;
  const size_t chunks = (bytes + chunk - 1) / chunk;
  const Clock::time_point begin = Clock::now();
  const uint64_t copy = ++shared.asked;
  for (size_t queued = 0, staged = 0; staged < chunks;) {
    if (queued < chunks) {
      const size_t at = queued * chunk;
      from.copy(staging + at, from.memory + at, std::min(chunk, bytes - at), cudaMemcpyDeviceToHost,
                queued);
      ++queued;
    }
    for (; staged < queued; ++staged) {
      const cudaError_t result = cudaEventQuery(from.events[staged]);
      if (result == cudaErrorNotReady) break;
      CHECK(result);
      shared.staged = before + staged + 1;
    }
  }
  while (shared.done != copy) {
  }
  return us_since(begin);
}

[[noreturn]] void be_the_destination(char* staging, Shared& shared) {
  const Side to(destination_device());
  CHECK(cudaHostRegister(staging, kMostBytes, cudaHostRegisterDefault));
  shared.destination_ready = true;
  uint64_t taken = 0;
  Clock::time_point warmed{};
  for (uint64_t copy = 0;;) {
    if (shared.over) std::_Exit(0);
    if (shared.asked == copy) {
      if (shared.warm) to.keep_warm(staging, cudaMemcpyHostToDevice, warmed);
      continue;
    }
    ++copy;
    const size_t bytes = shared.bytes, chunk = shared.chunk;
    size_t i = 0;
    for (size_t at = 0; at < bytes; at += chunk, ++i, ++taken) {
      while (shared.staged == taken) {
      }
      to.copy(to.memory + at, staging + at, std::min(chunk, bytes - at), cudaMemcpyHostToDevice, i);
    }
    await(to.events[i - 1]);
    shared.done = copy;
  }
}

double by_the_driver(const Side& from, const Side& to, size_t bytes) {
  from.use();
  const Clock::time_point begin = Clock::now();
  CHECK(cudaMemcpyPeerAsync(to.memory, to.device, from.memory, from.device, bytes, from.stream));
  CHECK(cudaStreamSynchronize(from.stream));
  return us_since(begin);
}

void compare(const Side& from, const Side& to, char* staging, Shared& shared, int rounds) {
  std::printf("%10s %10s %10s %10s %10s   us\n", "bytes", "chunk", "driver", "events", "hand-over");
  for (const size_t bytes :
       {64u << 10, 200'000u, 512u << 10, 1u << 20, 2u << 20, 4u << 20, 16u << 20}) {
    for (size_t chunks = 1; chunks <= kMostChunks; chunks *= 2) {
      const size_t chunk = (bytes / chunks + 255) / 256 * 256;
      if (chunk < kLeastChunk || chunk > (4u << 20)) continue;
      std::vector<double> driver, events, hand_over;
      for (int round = 0; round < rounds; ++round) {
        driver.push_back(by_the_driver(from, to, bytes));
        events.push_back(by_events(from, to, staging, bytes, chunk));
        hand_over.push_back(by_hand_over(from, staging, shared, bytes, chunk));
      }
      std::printf("%10zu %10zu %10.1f %10.1f %10.1f\n", bytes, chunk, median(driver),
                  median(events), median(hand_over));
    }
  }
}

void pause(const Side& from, char* staging, Shared& shared, double seconds, bool warm) {
  Clock::time_point warmed{};
  shared.warm = warm;
  for (const Clock::time_point begin = Clock::now(); us_since(begin) < seconds * 1e6;) {
    if (warm) from.keep_warm(staging, cudaMemcpyDeviceToHost, warmed);
  }
  shared.warm = false;
}

void compare_firsts(const Side& from, const Side& to, char* staging, Shared& shared, int rounds,
                    double seconds) {
  std::printf("%10s %23s %23s %23s   us: first, second\n", "bytes", "driver", "hand-over",
              "kept warm");
  for (const size_t bytes : {64u << 10, 1u << 20, 16u << 20}) {
    const auto driver = [&] { return by_the_driver(from, to, bytes); };
    const auto hand_over = [&] {
      return by_hand_over(from, staging, shared, bytes, std::min<size_t>(bytes, 512u << 10));
    };
    std::vector<double> taken[3][2];
    for (int round = 0; round < rounds; ++round) {
      for (int way = 0; way < 3; ++way) {
        pause(from, staging, shared, seconds, way == 2);
        for (std::vector<double>& which : taken[way]) {
          which.push_back(way == 0 ? driver() : hand_over());
        }
      }
    }
    std::printf("%10zu", bytes);
    for (auto& [first, second] : taken) {
      std::printf(" %11.1f %11.1f", median(first), median(second));
    }
    std::printf("\n");
  }
}

}  // namespace

int main(int argc, char** argv) {
  int rounds = 0;
  double settle = 0;
  bool understood = argc % 2 == 1;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::string(argv[i]) == "--rounds") {
      understood = understood && (rounds = std::atoi(argv[i + 1])) > 0;
    } else if (std::string(argv[i]) == "--settle") {
      understood = understood && (settle = std::atof(argv[i + 1])) > 0;
    } else {
      understood = false;
    }
  }
  if (!understood) {
    std::fprintf(stderr,
                 "usage: staged [--rounds 100]\n"
                 "       staged --settle SECONDS [--rounds 5]\n");
    return 2;
  }
  auto* shared = new (map_shared<Shared>(sizeof(Shared))) Shared;
  char* staging = map_shared<char>(kMostBytes);
  const pid_t child = ::fork();  // before CUDA is used
  if (child == 0) be_the_destination(staging, *shared);
  // If the destination ends, it has printed the reason. This process then ends too, because it
  // would wait without end.
  std::signal(SIGCHLD, [](int) { std::_Exit(1); });

  const Side from(0), to(destination_device());
  CHECK(cudaHostRegister(staging, kMostBytes, cudaHostRegisterPortable));
  while (!shared->destination_ready) {
  }
  if (settle > 0) {
    compare_firsts(from, to, staging, *shared, rounds > 0 ? rounds : 5, settle);
  } else {
    compare(from, to, staging, *shared, rounds > 0 ? rounds : 100);
  }
  std::signal(SIGCHLD, SIG_DFL);
  shared->over = true;
  ::waitpid(child, nullptr, 0);
  return 0;
}
