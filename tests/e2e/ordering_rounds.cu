// ordering_rounds ROUNDS SEED [swap]: runs ROUNDS random graphs of dependent work. In each round,
// several host threads put work into streams that all of them use: kernels that do not commute,
// copies of every kind, fills. Only three things order the work: the order of calls into one stream
// (also from different threads), events that other streams wait for, and results that a thread
// reads before it continues. If any two dependent commands change places, a round ends with a value
// that differs from the host's: "round R: wrong", and exit status 1. With `swap`, it sometimes
// launches a kernel after the work of the next step, as if the two had changed places on their way.
// This must be detected, which shows that the check can fail.
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "program.h"

constexpr int kThreads = 4, kStreams = 3, kSteps = 24;
constexpr int kSwapEvery = 5;  // one kernel of this many is swapped
constexpr int kWords = 1024;   // in a cell

__global__ void mix(unsigned* target, const unsigned* source, unsigned salt) {
  for (int i = threadIdx.x; i < kWords; i += blockDim.x) {
    target[i] = target[i] * 1664525u + (source[(i + 1) % kWords] ^ salt);
  }
}

enum Kind { kMix, kFill, kToDevice, kToDeviceSmall, kFromPinned, kBetween, kToHost, kKinds };

struct Step {
  Kind kind;
  int target, source;  // cells; cell c is written in stream c only
  int thread;          // the thread that makes the calls
  unsigned salt;
};

using Cell = std::vector<unsigned>;

struct World {
  Cell cells[kStreams];
  Step steps[kSteps];
  Cell results[kSteps];  // of the steps that copy to the host: the right values

  explicit World(uint64_t seed) {
    Random random(seed);
    for (Cell& cell : cells) {
      cell.resize(kWords);
      for (unsigned& word : cell) word = random.next();
    }
    for (Step& step : steps) {
      step = {static_cast<Kind>(random.below(kKinds)), static_cast<int>(random.below(kStreams)), 0,
              static_cast<int>(random.below(kThreads)), random.next()};
      step.source = (step.target + 1 + random.below(kStreams - 1)) % kStreams;
    }
  }
  // The words that the host sends in a step; the pattern is unique to the step.
  static Cell payload(const Step& step) {
    Cell words(step.kind == kToDeviceSmall ? 16 : kWords);
    for (size_t i = 0; i < words.size(); ++i)
      words[i] = step.salt + static_cast<unsigned>(i) * 7919u;
    return words;
  }
  void compute() {
    for (int s = 0; s < kSteps; ++s) {
      const Step& step = steps[s];
      Cell& target = cells[step.target];
      switch (step.kind) {
        case kMix:
          for (int i = 0; i < kWords; ++i) {
            target[i] = target[i] * 1664525u + (cells[step.source][(i + 1) % kWords] ^ step.salt);
          }
          break;
        case kFill:
          target.assign(kWords, (step.salt & 0xff) * 0x01010101u);
          break;
        case kToDevice:
        case kToDeviceSmall:
        case kFromPinned: {
          const Cell words = payload(step);
          std::copy(words.begin(), words.end(), target.begin());
          break;
        }
        case kBetween:
          target = cells[step.source];
          break;
        case kToHost:
          results[s] = target;
          break;
        default:
          break;
      }
    }
  }
};

struct Device {
  unsigned* cells[kStreams];
  unsigned* pinned[kSteps];
  cudaStream_t streams[kStreams];
  cudaEvent_t events[kSteps];

  Device() {
    for (int c = 0; c < kStreams; ++c) {
      CUDA(cudaMalloc(&cells[c], kWords * sizeof(unsigned)));
      CUDA(cudaStreamCreateWithFlags(&streams[c], cudaStreamNonBlocking));
    }
    for (int s = 0; s < kSteps; ++s) {
      CUDA(cudaMallocHost(&pinned[s], kWords * sizeof(unsigned)));
      CUDA(cudaEventCreateWithFlags(&events[s], cudaEventDisableTiming));
    }
  }
};

// Makes the calls of one step. The step's stream waits for the last steps that accessed the same
// cells. `late`: a launch that an earlier step left to this one; null: nothing is swapped.
void carry_out(Device& device, const World& world, int s, const int* last_touch,
               std::function<void()>* late, Cell* result) {
  const Step& step = world.steps[s];
  cudaStream_t stream = device.streams[step.target];
  const bool reads_source = step.kind == kMix || step.kind == kBetween;
  for (const int cell : {step.target, step.source}) {
    if (cell != step.target && !reads_source) continue;
    if (last_touch[cell] >= 0)
      CUDA(cudaStreamWaitEvent(stream, device.events[last_touch[cell]], 0));
  }
  unsigned* const target = device.cells[step.target];
  const size_t bytes = kWords * sizeof(unsigned);
  const std::function<void()> swapped = late ? std::exchange(*late, nullptr) : nullptr;
  const auto launch = [=, source = device.cells[step.source], salt = step.salt] {
    mix<<<1, 64, 0, stream>>>(target, source, salt);
    CUDA(cudaGetLastError());
  };
  switch (step.kind) {
    case kMix:
      if (late && step.salt % kSwapEvery == 0) {
        *late = launch;
      } else {
        launch();
      }
      break;
    case kFill:
      CUDA(cudaMemsetAsync(target, static_cast<int>(step.salt & 0xff), bytes, stream));
      break;
    case kToDevice:
    case kToDeviceSmall: {
      // Pageable memory: the call has copied the words when it returns.
      Cell words = World::payload(step);
      CUDA(cudaMemcpyAsync(target, words.data(), words.size() * sizeof(unsigned),
                           cudaMemcpyHostToDevice, stream));
      std::fill(words.begin(), words.end(), 0xdeadu);
      break;
    }
    case kFromPinned: {
      const Cell words = World::payload(step);
      std::copy(words.begin(), words.end(), device.pinned[s]);
      CUDA(cudaMemcpyAsync(target, device.pinned[s], bytes, cudaMemcpyHostToDevice, stream));
      break;
    }
    case kBetween:
      CUDA(cudaMemcpyAsync(target, device.cells[step.source], bytes, cudaMemcpyDeviceToDevice,
                           stream));
      break;
    case kToHost:
      CUDA(cudaMemcpyAsync(device.pinned[s], target, bytes, cudaMemcpyDeviceToHost, stream));
      break;
    default:
      break;
  }
  if (swapped) swapped();
  CUDA(cudaEventRecord(device.events[s], stream));
  if (step.kind == kToHost) {
    CUDA(cudaEventSynchronize(device.events[s]));
    result->assign(device.pinned[s], device.pinned[s] + kWords);
  }
}

bool run(Device& device, uint64_t seed, bool swap) {
  World world(seed);
  for (int c = 0; c < kStreams; ++c) {
    CUDA(cudaMemcpyAsync(device.cells[c], world.cells[c].data(), kWords * sizeof(unsigned),
                         cudaMemcpyHostToDevice, device.streams[c]));
    CUDA(cudaStreamSynchronize(device.streams[c]));  // the other streams have no event to wait for
  }
  std::mutex mutex;
  std::condition_variable changed;
  int next = 0;
  std::vector<Cell> results(kSteps);
  std::function<void()> late;
  const auto work = [&](int me) {
    int last_touch[kStreams];
    std::fill(last_touch, last_touch + kStreams, -1);
    for (int s = 0; s < kSteps; ++s) {
      const Step& step = world.steps[s];
      if (step.thread == me) {
        std::unique_lock lock(mutex);
        changed.wait(lock, [&] { return next == s; });
        carry_out(device, world, s, last_touch, swap ? &late : nullptr, &results[s]);
        ++next;
        changed.notify_all();
      }
      last_touch[step.target] = s;
      if (step.kind == kMix || step.kind == kBetween) last_touch[step.source] = s;
    }
  };
  std::vector<std::thread> threads;
  for (int me = 0; me < kThreads; ++me) threads.emplace_back(work, me);
  for (std::thread& thread : threads) thread.join();
  if (late) late();

  Cell final[kStreams];
  for (int c = 0; c < kStreams; ++c) {
    final[c].resize(kWords);
    CUDA(cudaMemcpyAsync(final[c].data(), device.cells[c], kWords * sizeof(unsigned),
                         cudaMemcpyDeviceToHost, device.streams[c]));
    CUDA(cudaStreamSynchronize(device.streams[c]));
  }
  world.compute();
  bool right = true;
  for (int c = 0; c < kStreams; ++c) right = right && final[c] == world.cells[c];
  for (int s = 0; s < kSteps; ++s) right = right && results[s] == world.results[s];
  return right;
}

int main(int argc, char** argv) {
  if (argc != 3 && argc != 4) return 2;
  const int rounds = std::atoi(argv[1]);
  const uint64_t seed = std::strtoull(argv[2], nullptr, 10);
  const bool swap = argc == 4;
  Device device;
  for (int round = 0; round < rounds; ++round) {
    if (!run(device, seed + round, swap)) {
      std::printf("round %d: wrong\n", round);
      return 1;
    }
  }
  std::printf("%d rounds\n", rounds);
}
