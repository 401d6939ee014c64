// Memory that host and device share, used in several streams: work that is queued after a write of
// the host sees the write, in any stream, even while another stream is held.
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <thread>

#include "program.h"

namespace {

constexpr int kCount = 300'001;  // more than a MB; no whole number of pages
constexpr size_t kBytes = kCount * sizeof(int);

__global__ void wait_for(const volatile int* gate) {
  while (*gate == 0) {
  }
}
__global__ void open_gate(volatile int* gate) { *gate = 1; }
__global__ void add_up(const int* values, int n, unsigned long long* sum) {
  unsigned long long mine = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    mine += static_cast<unsigned>(values[i]);
  atomicAdd(sum, mine);
}
__global__ void add(int* values, int n, int more) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    values[i] += more;
}

// A stream that does not wait for the default stream.
class Stream {
 public:
  Stream() { CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  ~Stream() { CUDA(cudaStreamDestroy(stream_)); }
  operator cudaStream_t() const { return stream_; }

 private:
  cudaStream_t stream_;
};

// Holds the streams that wait for it, until it is destroyed.
class Gate {
 public:
  Gate() : gate_(1) {
    gate_.clear();
    CUDA(cudaEventCreateWithFlags(&passed_, cudaEventDisableTiming));
    wait_for<<<1, 1, 0, holder_>>>(gate_.get());
    CUDA(cudaEventRecord(passed_, holder_));
  }
  ~Gate() {
    open_gate<<<1, 1, 0, opener_>>>(gate_.get());
    FINISH();
    CUDA(cudaEventDestroy(passed_));
  }
  void holds(cudaStream_t stream) { CUDA(cudaStreamWaitEvent(stream, passed_, 0)); }

 private:
  DeviceArray<int> gate_;
  Stream holder_, opener_;
  cudaEvent_t passed_;
};

class Sum {
 public:
  explicit Sum(const int* values) : values_(values), sum_(1) { sum_.clear(); }
  void queue(cudaStream_t stream) {
    add_up<<<32, 128, 0, stream>>>(values_, kCount, sum_.get());
    CUDA(cudaGetLastError());
  }
  // The stream's sum so far.
  unsigned long long get(cudaStream_t stream) {
    unsigned long long result = 0;
    CUDA(cudaMemcpyAsync(&result, sum_.get(), sizeof result, cudaMemcpyDeviceToHost, stream));
    CUDA(cudaStreamSynchronize(stream));
    return result;
  }

 private:
  const int* const values_;
  DeviceArray<unsigned long long> sum_;
};

unsigned long long fill(int* values, int from) {
  unsigned long long sum = 0;
  for (int i = 0; i < kCount; ++i) {
    values[i] = from + i;
    sum += static_cast<unsigned>(values[i]);
  }
  return sum;
}

class Graph {
 public:
  explicit Graph(const std::function<void(cudaStream_t)>& work) {
    CUDA(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    work(stream_);
    cudaGraph_t graph;
    CUDA(cudaStreamEndCapture(stream_, &graph));
    CUDA(cudaGraphInstantiate(&executable_, graph, 0));
    CUDA(cudaGraphDestroy(graph));
  }
  ~Graph() { CUDA(cudaGraphExecDestroy(executable_)); }
  void launch(cudaStream_t stream) { CUDA(cudaGraphLaunch(executable_, stream)); }

 private:
  Stream stream_;
  cudaGraphExec_t executable_;
};

using Use = std::function<void(cudaStream_t)>;

// The host writes. The first use after that is in a held stream, the second in another stream.
void behind_a_held_stream(const char* name, int* values, const Use& first,
                          const std::function<void(unsigned long long expected)>& second) {
  static int from = 0;
  Stream held;
  {
    Gate gate;
    gate.holds(held);
    const unsigned long long expected = fill(values, ++from);
    first(held);
    second(expected);
  }
  std::printf("%s\n", name);
}

void uses(const char* memory, int* values) {
  std::printf("%s\n", memory);
  Sum first(values), second(values);
  Stream other;
  Graph first_graph([&](cudaStream_t stream) { first.queue(stream); });
  Graph second_graph([&](cudaStream_t stream) { second.queue(stream); });
  const Use kernel = [&](cudaStream_t stream) { first.queue(stream); };
  unsigned long long before = 0;
  // `before`: the sum of earlier uses of `second`.
  const auto expect_in = [&](cudaStream_t stream, unsigned long long expected) {
    const unsigned long long now = second.get(stream);
    CHECK(now - before == expected);
    before = now;
  };
  const auto in_other = [&](unsigned long long expected) {
    second.queue(other);
    expect_in(other, expected);
  };
  behind_a_held_stream("a kernel, then a kernel", values, kernel, in_other);
  behind_a_held_stream("a kernel, then a kernel in the default stream", values, kernel,
                       [&](unsigned long long expected) {
                         second.queue(nullptr);
                         expect_in(nullptr, expected);
                       });
  behind_a_held_stream("a kernel, then a kernel in the thread's stream", values, kernel,
                       [&](unsigned long long expected) {
                         second.queue(cudaStreamPerThread);
                         expect_in(cudaStreamPerThread, expected);
                       });
  behind_a_held_stream("a kernel, then a kernel of another thread", values, kernel,
                       [&](unsigned long long expected) {
                         std::thread([&] {
                           second.queue(cudaStreamPerThread);
                           expect_in(cudaStreamPerThread, expected);
                         }).join();
                       });
  behind_a_held_stream("a kernel, then a graph", values, kernel, [&](unsigned long long expected) {
    second_graph.launch(other);
    expect_in(other, expected);
  });
  behind_a_held_stream(
      "a graph, then a kernel", values, [&](cudaStream_t stream) { first_graph.launch(stream); },
      in_other);
  behind_a_held_stream("a kernel, then a copy", values, kernel, [&](unsigned long long expected) {
    std::vector<int> copied(kCount);
    CUDA(cudaMemcpyAsync(copied.data(), values, kBytes, cudaMemcpyDefault, other));
    CUDA(cudaStreamSynchronize(other));
    unsigned long long sum = 0;
    for (int value : copied) sum += static_cast<unsigned>(value);
    CHECK(sum == expected);
  });
  behind_a_held_stream(
      "a fill, then a kernel", values,
      [&](cudaStream_t stream) { CUDA(cudaMemsetAsync(values, 0, 8, stream)); }, in_other);
  behind_a_held_stream("a kernel, then a kernel behind an event", values, kernel,
                       [&](unsigned long long expected) {
                         Stream last;
                         cudaEvent_t event;
                         CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
                         CUDA(cudaEventRecord(event, other));
                         CUDA(cudaStreamWaitEvent(last, event, 0));
                         second.queue(last);
                         expect_in(last, expected);
                         CUDA(cudaEventDestroy(event));
                       });
  // Meanwhile the other stream is being captured, so it gets no work.
  CUDA(cudaStreamBeginCapture(other, cudaStreamCaptureModeRelaxed));
  behind_a_held_stream("a kernel during a capture, then what was captured", values, kernel,
                       [&](unsigned long long expected) {
                         second.queue(other);
                         cudaGraph_t graph;
                         CUDA(cudaStreamEndCapture(other, &graph));
                         cudaGraphExec_t executable;
                         CUDA(cudaGraphInstantiate(&executable, graph, 0));
                         CUDA(cudaGraphLaunch(executable, other));
                         expect_in(other, expected);
                         CUDA(cudaGraphExecDestroy(executable));
                         CUDA(cudaGraphDestroy(graph));
                       });
  behind_a_held_stream("a kernel, then a host function", values, kernel,
                       [&](unsigned long long expected) {
                         struct Seen {
                           const int* values;
                           unsigned long long sum;
                         } seen{values, 0};
                         CUDA(cudaLaunchHostFunc(
                             other,
                             [](void* argument) {
                               auto* mine = static_cast<Seen*>(argument);
                               for (int i = 0; i < kCount; ++i)
                                 mine->sum += static_cast<unsigned>(mine->values[i]);
                             },
                             &seen));
                         CUDA(cudaStreamSynchronize(other));
                         CHECK(seen.sum == expected);
                         for (int i = 1; i < kCount; ++i) CHECK(values[i] == values[0] + i);
                       });
  // A wait for the other stream does not undo the host's writes.
  behind_a_held_stream("a kernel, then a wait", values, kernel, [&](unsigned long long) {
    second.queue(other);
    (void)second.get(other);
    before = second.get(other);
    for (int i = 1; i < kCount; ++i) CHECK(values[i] == values[0] + i);
  });
}

// The host writes a little, several times, and streams take turns in using it.
void in_turn(int* values) {
  Stream streams[3];
  Sum sum(values);
  unsigned long long expected = 0, all = fill(values, 0);
  for (int round = 0; round < 30; ++round) {
    Gate gate;
    gate.holds(streams[round % 3]);
    values[1000 * round] += 5;
    all += 5;
    sum.queue(streams[round % 3]);
    expected += all;
    values[1000 * round + 1] += 7;
    all += 7;
    sum.queue(streams[(round + 1) % 3]);
    CUDA(cudaStreamSynchronize(streams[(round + 1) % 3]));
    // The first sum has the old or the new value, because its stream is held.
    sum.queue(streams[(round + 2) % 3]);
    CUDA(cudaStreamSynchronize(streams[(round + 2) % 3]));
    expected += 2 * all;
  }
  const unsigned long long got = sum.get(streams[0]);
  CHECK(got >= expected && got <= expected + 30 * 7);
  std::printf("in turn\n");
}

// A kernel changes the memory, the host sees that, and a kernel changes it back.
void there_and_back(int* values) {
  Stream stream;
  const auto expect = [&](int offset) {
    for (int i = 0; i < kCount; ++i) CHECK(values[i] == i + offset);
  };
  const auto change = [&](int more) { add<<<32, 128, 0, stream>>>(values, kCount, more); };
  fill(values, 0);
  change(1);
  CUDA(cudaStreamSynchronize(stream));
  expect(1);
  // In a host function.
  change(2);
  int seen = 0;
  struct Look {
    const int* values;
    int* seen;
  } look{values, &seen};
  const auto at_all = [](void* argument) {
    const auto* given = static_cast<Look*>(argument);
    for (int i = 0; i < kCount; ++i) *given->seen += given->values[i] == i + 3;
  };
  CUDA(cudaLaunchHostFunc(stream, at_all, &look));
  change(-2);
  CUDA(cudaStreamSynchronize(stream));
  CHECK(seen == kCount);
  expect(1);
  // After a wait, in some places.
  change(5);
  CUDA(cudaStreamSynchronize(stream));
  for (int i = 0; i < kCount; i += kCount / 5) CHECK(values[i] == i + 6);
  change(-5);
  CUDA(cudaStreamSynchronize(stream));
  expect(1);
  // In a fill.
  CUDA(cudaMemsetAsync(values, 0, kBytes, stream));
  CUDA(cudaStreamSynchronize(stream));
  CHECK(values[7] == 0 && values[kCount - 1] == 0);
  fill(values, 0);
  change(1);
  CUDA(cudaStreamSynchronize(stream));
  expect(1);
  std::printf("there and back\n");
}

// A host function writes first. Kernels after it change the values; some are queued before it has
// run, some afterwards.
void behind_a_host_function() {
  struct Fill {
    int* values;
    std::atomic<bool> done{false};
  } order;
  CUDA(cudaMallocManaged(&order.values, kBytes));
  Stream stream;
  CUDA(cudaLaunchHostFunc(
      stream,
      [](void* argument) {
        auto* const given = static_cast<Fill*>(argument);
        for (int i = 0; i < kCount; ++i) given->values[i] = i;
        given->done = true;
      },
      &order));
  add<<<32, 128, 0, stream>>>(order.values, kCount, 1);
  while (!order.done) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the kernel runs
  add<<<32, 128, 0, stream>>>(order.values, kCount, 1);
  CUDA(cudaStreamSynchronize(stream));
  for (int i = 0; i < kCount; ++i) CHECK(order.values[i] == i + 2);
  // A host function that runs while the memory is being freed sees the results of earlier kernels.
  struct Look {
    const int* values;
    int seen = 0;
  } look{order.values};
  add<<<32, 128, 0, stream>>>(order.values, kCount, 1);
  CUDA(cudaLaunchHostFunc(
      stream,
      [](void* argument) {
        auto* const given = static_cast<Look*>(argument);
        for (int i = 0; i < kCount; ++i) given->seen += given->values[i] == i + 3;
      },
      &look));
  CUDA(cudaFree(order.values));
  CHECK(look.seen == kCount);
  std::printf("behind a host function\n");
}

// Several threads, each with its own part of the memory and its own stream.
void by_threads(int* values) {
  constexpr int kThreads = 4, kPart = 73 * 1024;  // whole pages
  std::vector<std::thread> threads;
  CUDA(cudaDeviceSynchronize());
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([=] {
      int* const mine = values + t * kPart;
      Stream streams[2];
      for (int i = 0; i < kPart; ++i) mine[i] = t;
      for (int round = 0; round < 10; ++round) {
        add<<<8, 128, 0, streams[round % 2]>>>(mine, kPart, round);
        CUDA(cudaGetLastError());
        CUDA(cudaStreamSynchronize(streams[round % 2]));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  FINISH();
  for (int t = 0; t < kThreads; ++t) {
    for (int i = 0; i < kPart; ++i) CHECK(values[t * kPart + i] == t + 45);
  }
  std::printf("by threads\n");
}

// Loads the kernels before the tests: the first use of a kernel may wait for the device, which a
// gate would block.
void load_kernels(int* memory) {
  cudaFuncAttributes attributes;
  CUDA(cudaFuncGetAttributes(&attributes, wait_for));
  CUDA(cudaFuncGetAttributes(&attributes, open_gate));
  CUDA(cudaFuncGetAttributes(&attributes, add_up));
  CUDA(cudaFuncGetAttributes(&attributes, add));
  CUDA(cudaMemset(memory, 0, 8));
  FINISH();
}

}  // namespace

int main() {
  int *managed, *mapped;
  CUDA(cudaMallocManaged(&managed, kBytes));
  CUDA(cudaHostAlloc(&mapped, kBytes, cudaHostAllocMapped));
  load_kernels(managed);
  load_kernels(mapped);
  uses("managed", managed);
  in_turn(managed);
  there_and_back(managed);
  by_threads(managed);
  behind_a_host_function();
  uses("mapped", mapped);
  in_turn(mapped);
  there_and_back(mapped);
  CUDA(cudaFree(managed));
  CUDA(cudaFreeHost(mapped));
}
