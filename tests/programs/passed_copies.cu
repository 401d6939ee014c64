// When a thread finds out that a stream has passed a small copy to page-locked memory, the bytes
// must be there. It can find out by a wait, a query, an event, another stream, a host function, the
// answer of another call, or by polling the memory itself.
#include <atomic>
#include <cstring>
#include <functional>
#include <thread>

#include "program.h"

// Each way is tried twenty times with each of the delays of copy(). Waits yield to the threads that
// move the bytes, because other programs may use the other cores.
constexpr int kTimes = 100;
constexpr size_t kWords[] = {1, 100, 16 << 10};  // 4 bytes, 400 and 64 KB

// Takes a while, so that the copy after it is often still under way when the host asks.
__global__ void fill(unsigned* memory, size_t words, unsigned value, long long cycles) {
  const long long end = clock64() + cycles;
  while (clock64() < end) {
  }
  for (size_t i = threadIdx.x; i < words; i += blockDim.x) memory[i] = value;
}

struct Copies {
  cudaStream_t stream = nullptr;
  cudaStream_t other = nullptr;
  cudaEvent_t event = nullptr;
  unsigned *device = nullptr, *pinned = nullptr;
  size_t words = 0;
  unsigned value = 0;

  void copy() {
    ++value;
    fill<<<1, 64, 0, stream>>>(device, words, value, value % 5 * 4000);
    CUDA(cudaMemcpyAsync(pinned, device, words * 4, cudaMemcpyDeviceToHost, stream));
  }
  // The last word is written last.
  bool arrived() const { return pinned[0] == value && pinned[words - 1] == value; }
};

void CUDART_CB look(void* argument) {
  auto* const copies = static_cast<Copies*>(argument);
  CHECK(copies->arrived());
}

using Way = std::function<void(Copies&)>;
struct Named {
  const char* name;
  Way way;
};

const Named kWays[] = {
    {"stream", [](Copies& c) { CUDA(cudaStreamSynchronize(c.stream)); }},
    {"device", [](Copies&) { CUDA(cudaDeviceSynchronize()); }},
    {"event",
     [](Copies& c) {
       CUDA(cudaEventRecord(c.event, c.stream));
       CUDA(cudaEventSynchronize(c.event));
     }},
    {"event query",
     [](Copies& c) {
       CUDA(cudaEventRecord(c.event, c.stream));
       while (cudaEventQuery(c.event) == cudaErrorNotReady) std::this_thread::yield();
     }},
    {"stream query",
     [](Copies& c) {
       while (cudaStreamQuery(c.stream) == cudaErrorNotReady) std::this_thread::yield();
     }},
    {"another stream",
     [](Copies& c) {
       CUDA(cudaEventRecord(c.event, c.stream));
       CUDA(cudaStreamWaitEvent(c.other, c.event, 0));
       CUDA(cudaStreamSynchronize(c.other));
     }},
    {"a host function",
     [](Copies& c) {
       CUDA(cudaLaunchHostFunc(c.stream, look, &c));
       CUDA(cudaStreamSynchronize(c.stream));
     }},
    {"a host function of another stream",
     [](Copies& c) {
       CUDA(cudaEventRecord(c.event, c.stream));
       CUDA(cudaStreamWaitEvent(c.other, c.event, 0));
       CUDA(cudaLaunchHostFunc(c.other, look, &c));
       CUDA(cudaStreamSynchronize(c.other));
     }},
    {"a copy to pageable memory",
     [](Copies& c) {
       unsigned word = 0;
       CUDA(cudaMemcpyAsync(&word, c.device, 4, cudaMemcpyDeviceToHost, c.stream));
       CUDA(cudaStreamSynchronize(c.stream));
       CHECK(word == c.value);
     }},
    {"a large copy behind it",
     [](Copies& c) {
       unsigned *large, *from;
       CUDA(cudaMallocHost(&large, 1 << 20));
       CUDA(cudaMalloc(&from, 1 << 20));
       CUDA(cudaMemcpyAsync(large, from, 1 << 20, cudaMemcpyDeviceToHost, c.stream));
       CUDA(cudaStreamSynchronize(c.stream));
       CHECK(c.arrived());
       CUDA(cudaFreeHost(large));
       CUDA(cudaFree(from));
     }},
    {"a copy back to the device",
     [](Copies& c) {
       unsigned* back;
       CUDA(cudaMalloc(&back, c.words * 4));
       CUDA(cudaMemcpyAsync(back, c.pinned, c.words * 4, cudaMemcpyHostToDevice, c.stream));
       std::vector<unsigned> seen(c.words);
       CUDA(cudaMemcpyAsync(seen.data(), back, c.words * 4, cudaMemcpyDeviceToHost, c.stream));
       CUDA(cudaStreamSynchronize(c.stream));
       for (const unsigned word : seen) CHECK(word == c.value);
       CUDA(cudaFree(back));
     }},
    {"the memory",
     [](Copies& c) {
       const volatile unsigned* const last = c.pinned + c.words - 1;
       while (*last != c.value) std::this_thread::yield();
       CUDA(cudaStreamSynchronize(c.stream));
     }},
};

void all_ways(cudaStream_t stream) {
  for (const size_t words : kWords) {
    Copies copies;
    copies.stream = stream;
    copies.words = words;
    CUDA(cudaStreamCreateWithFlags(&copies.other, cudaStreamNonBlocking));
    CUDA(cudaEventCreateWithFlags(&copies.event, cudaEventDisableTiming));
    CUDA(cudaMalloc(&copies.device, words * 4));
    CUDA(cudaMallocHost(&copies.pinned, words * 4));
    std::memset(copies.pinned, 0, words * 4);
    for (const Named& way : kWays) {
      for (int time = 0; time < kTimes / (words > 1000 ? 5 : 1); ++time) {
        copies.copy();
        way.way(copies);
        if (!copies.arrived()) fail(__FILE__, __LINE__, way.name, "its bytes are not there");
      }
    }
    CUDA(cudaFreeHost(copies.pinned));
    CUDA(cudaFree(copies.device));
    CUDA(cudaEventDestroy(copies.event));
    CUDA(cudaStreamDestroy(copies.other));
  }
}

// Several threads make more copies than a worker has marks.
void many() {
  constexpr int kCopies = 3000;
  std::vector<unsigned> numbers(kCopies);
  for (int i = 0; i < kCopies; ++i) numbers[i] = i + 1;
  const DeviceArray<unsigned> device(numbers);
  unsigned* pinned;
  CUDA(cudaMallocHost(&pinned, kCopies * 4));
  const auto part = [&](int from, int to) {
    cudaStream_t stream;
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (int i = from; i < to; ++i) {
      CUDA(cudaMemcpyAsync(pinned + i, device.get() + i, 4, cudaMemcpyDeviceToHost, stream));
    }
    CUDA(cudaStreamSynchronize(stream));
    for (int i = from; i < to; ++i) CHECK(pinned[i] == numbers[i]);
    CUDA(cudaStreamDestroy(stream));
  };
  std::thread first(part, 0, kCopies / 2), second(part, kCopies / 2, kCopies);
  first.join();
  second.join();
  CUDA(cudaFreeHost(pinned));
}

struct Gate {
  std::atomic<bool> open{false};
};
void CUDART_CB pass(void* argument) {
  while (!static_cast<Gate*>(argument)->open) std::this_thread::yield();
}

// A held stream has as many waiting copies as a driver's queue can hold. Other streams continue: the
// function that holds the stream waits for a copy that another stream gets after many of these.
void behind_a_gate() {
  constexpr int kCopies = 600;
  std::vector<unsigned> numbers(kCopies);
  for (int i = 0; i < kCopies; ++i) numbers[i] = i + 1;
  const DeviceArray<unsigned> device(numbers);
  unsigned* pinned;
  CUDA(cudaMallocHost(&pinned, (kCopies + 1) * 4));
  cudaStream_t stream, other;
  CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CUDA(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
  CUDA(cudaMemcpyAsync(pinned, device.get(), 4, cudaMemcpyDeviceToHost, stream));
  CUDA(cudaStreamSynchronize(stream));
  Gate gate, many;
  CUDA(cudaLaunchHostFunc(stream, pass, &gate));
  std::thread opens([&] {
    pass(&many);
    unsigned* const last = pinned + kCopies;
    CUDA(cudaMemcpyAsync(last, device.get() + 6, 4, cudaMemcpyDeviceToHost, other));
    CUDA(cudaStreamSynchronize(other));
    CHECK(*last == 7);
    gate.open = true;
  });
  for (int i = 0; i < kCopies; ++i) {
    CUDA(cudaMemcpyAsync(pinned + i, device.get() + i, 4, cudaMemcpyDeviceToHost, stream));
    if (i == kCopies / 2) many.open = true;
  }
  opens.join();
  CUDA(cudaStreamSynchronize(stream));
  for (int i = 0; i < kCopies; ++i) CHECK(pinned[i] == numbers[i]);
  CUDA(cudaStreamDestroy(other));
  CUDA(cudaStreamDestroy(stream));
  CUDA(cudaFreeHost(pinned));
}

// Several copies to the same memory: each arrives once, and the last copy's bytes stay.
void to_one_place() {
  const DeviceArray<unsigned> values(std::vector<unsigned>{1, 2});
  const DeviceArray<unsigned> large(std::vector<unsigned>(1 << 18, 3));
  unsigned* pinned;
  CUDA(cudaMallocHost(&pinned, large.bytes()));
  cudaStream_t stream;
  CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  volatile unsigned* const word = pinned;
  for (int time = 0; time < 2000; ++time) {
    *word = 0;
    CUDA(cudaMemcpyAsync(pinned, values.get(), 4, cudaMemcpyDeviceToHost, stream));
    CUDA(cudaMemcpyAsync(pinned, values.get() + 1, 4, cudaMemcpyDeviceToHost, stream));
    while (*word != 2) std::this_thread::yield();
    *word = 0;  // nothing writes the bytes a second time
    CUDA(cudaStreamSynchronize(stream));
    CHECK(*word == 0);
  }
  for (int time = 0; time < 10; ++time) {
    *word = 0;
    CUDA(cudaMemcpyAsync(pinned, values.get(), 4, cudaMemcpyDeviceToHost, stream));
    CUDA(cudaMemcpyAsync(pinned, large.get(), large.bytes(), cudaMemcpyDeviceToHost, stream));
    CUDA(cudaStreamSynchronize(stream));
    CHECK(*word == 3);
  }
  CUDA(cudaStreamDestroy(stream));
  CUDA(cudaFreeHost(pinned));
}

// Memory, stream and device end directly after a copy.
void ends() {
  for (int time = 0; time < 10; ++time) {
    Copies copies;
    copies.words = 100;
    CUDA(cudaStreamCreate(&copies.stream));
    CUDA(cudaMalloc(&copies.device, copies.words * 4));
    CUDA(cudaMallocHost(&copies.pinned, copies.words * 4));
    copies.copy();
    CUDA(cudaStreamDestroy(copies.stream));
    CUDA(cudaDeviceSynchronize());
    CHECK(copies.arrived());
    CUDA(cudaStreamCreate(&copies.stream));
    copies.copy();
    CUDA(cudaFreeHost(copies.pinned));
    std::vector<unsigned> registered(copies.words);
    CUDA(cudaHostRegister(registered.data(), copies.words * 4, cudaHostRegisterDefault));
    copies.pinned = registered.data();
    copies.copy();
    CUDA(cudaStreamSynchronize(copies.stream));
    CUDA(cudaHostUnregister(registered.data()));
    CHECK(copies.arrived());
    CUDA(cudaMallocHost(&copies.pinned, copies.words * 4));
    copies.copy();
    if (time % 3 == 0) CUDA(cudaDeviceReset());
  }
}

int main() {
  cudaStream_t stream;
  CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  all_ways(stream);
  std::puts("a stream");
  all_ways(nullptr);
  std::puts("the default stream");
  many();
  std::puts("many");
  behind_a_gate();
  std::puts("behind a gate");
  to_one_place();
  std::puts("to one place");
  ends();
  std::puts("ends");
}
