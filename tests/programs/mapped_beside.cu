// Mapped page-locked memory that the host and kernels write at the same time: no word of either
// side is lost, in any order of writes and waits. CUDA allows this, because the pages are in the
// host's memory.
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "program.h"

namespace {

template <typename T>
__global__ void write_some(T* values, int n, int first, T value) {
  for (int i = 4 * (blockIdx.x * blockDim.x + threadIdx.x) + first; i < n;
       i += 4 * gridDim.x * blockDim.x)
    values[i] = static_cast<T>(value + i / 4);
}
template <typename T>
__global__ void add_up(const T* values, int n, int first, unsigned long long* sum) {
  unsigned long long mine = 0;
  for (int i = 4 * (blockIdx.x * blockDim.x + threadIdx.x) + first; i < n;
       i += 4 * gridDim.x * blockDim.x)
    mine += values[i];
  atomicAdd(sum, mine);
}
template <typename T>
__global__ void copy_one(const T* from, T* to) {
  *to = *from;
}
// Ends when the host has written the value.
template <typename T>
__global__ void await(const volatile T* flag, T value) {
  while (*flag != value) {
  }
}
template <typename T>
__global__ void twice(T* values, int n, int first) {
  for (int i = 4 * (blockIdx.x * blockDim.x + threadIdx.x) + first; i < n;
       i += 4 * gridDim.x * blockDim.x)
    values[i] = static_cast<T>(2 * values[i]);
}

// A stream that does not wait for the default stream.
class Stream {
 public:
  Stream() { CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  ~Stream() { CUDA(cudaStreamDestroy(stream_)); }
  operator cudaStream_t() const { return stream_; }
  void wait() { CUDA(cudaStreamSynchronize(stream_)); }

 private:
  cudaStream_t stream_;
};

// Lets work in progress end without a wait for it.
void let_it_end() { std::this_thread::sleep_for(std::chrono::milliseconds(30)); }

// Every fourth value, from `first` on, belongs to one writer.
template <typename T>
class Mapped {
 public:
  explicit Mapped(int count) : count(count), sum_(1) {
    CUDA(cudaHostAlloc(&values, count * sizeof(T), cudaHostAllocMapped));
    std::memset(values, 0, count * sizeof(T));
  }
  ~Mapped() { CUDA(cudaFreeHost(values)); }

  void write(int first, int value) {
    for (int i = first; i < count; i += 4) values[i] = static_cast<T>(value + i / 4);
  }
  void expect(int first, int value, int factor = 1) const {
    for (int i = first; i < count; i += 4)
      CHECK(values[i] == static_cast<T>(factor * static_cast<T>(value + i / 4)));
  }
  void write_in(cudaStream_t stream, int first, int value) {
    write_some<<<8, 128, 0, stream>>>(values, count, first, static_cast<T>(value));
    CUDA(cudaGetLastError());
  }
  void double_in(cudaStream_t stream, int first) {
    twice<<<8, 128, 0, stream>>>(values, count, first);
    CUDA(cudaGetLastError());
  }
  // Checks the values that kernels see.
  void expect_in(cudaStream_t stream, int first, int value) {
    sum_.clear();
    add_up<<<8, 128, 0, stream>>>(values, count, first, sum_.get());
    CUDA(cudaGetLastError());
    unsigned long long sum = 0, expected = 0;
    CUDA(cudaMemcpyAsync(&sum, sum_.get(), sizeof sum, cudaMemcpyDeviceToHost, stream));
    CUDA(cudaStreamSynchronize(stream));
    for (int i = first; i < count; i += 4) expected += static_cast<T>(value + i / 4);
    CHECK(sum == expected);
  }

  T* values = nullptr;
  const int count;

 private:
  DeviceArray<unsigned long long> sum_;
};

// A kernel has written its results, but no thread has waited for it. Then the host writes next to
// them, for a kernel in another stream.
template <typename T>
void beside_results(Mapped<T>& memory) {
  Stream one, other;
  for (int round = 0; round < 4; ++round) {
    memory.write_in(one, 0, round);
    let_it_end();
    memory.write(1, round + 10);
    memory.write_in(other, 2, round + 20);
    memory.expect_in(other, 1, round + 10);
    memory.expect(2, round + 20);
    one.wait();
    memory.expect(0, round);
    memory.expect(1, round + 10);
    memory.expect_in(other, 0, round);
  }
  std::printf("beside results\n");
}

// Kernels reset values that the host has set, as programs do with flags.
template <typename T>
void set_back(Mapped<T>& memory) {
  Stream stream;
  memory.write_in(stream, 0, 7);
  stream.wait();
  for (int round = 0; round < 3; ++round) {
    memory.write(0, 50 + round);
    memory.expect_in(stream, 0, 50 + round);
    memory.write_in(stream, 0, 7);
    stream.wait();
    memory.expect(0, 7);
    memory.write(1, round);
    memory.write_in(stream, 0, 50 + round);
    memory.write_in(stream, 0, 7);
    stream.wait();
    memory.expect(0, 7);
    memory.expect_in(stream, 1, round);
  }
  std::printf("set back\n");
}

// While a host function runs, another stream works in place on values that the host has just
// written.
template <typename T>
void beside_a_host_function(Mapped<T>& memory) {
  Stream one, other;
  struct Function {
    T* values;
    std::atomic<bool> runs{false}, may_end{false};
  } function{memory.values};
  memory.write_in(one, 0, 3);
  CUDA(cudaLaunchHostFunc(
      one,
      [](void* argument) {
        auto* const mine = static_cast<Function*>(argument);
        mine->runs = true;
        while (!mine->may_end) std::this_thread::yield();
        mine->values[0] = static_cast<T>(mine->values[0] + 1);
      },
      &function));
  while (!function.runs) std::this_thread::yield();
  memory.expect(0, 3);
  memory.write(1, 5);
  memory.double_in(other, 1);
  let_it_end();
  function.may_end = true;
  one.wait();
  other.wait();
  CHECK(memory.values[0] == static_cast<T>(4));
  memory.values[0] = static_cast<T>(3);
  memory.expect(0, 3);
  memory.expect(1, 5, 2);
  memory.expect_in(one, 0, 3);
  std::printf("beside a host function\n");
}

// The host immediately resets the values that a host function has set, and launches.
template <typename T>
void behind_a_host_function(Mapped<T>& memory) {
  Stream one, other;
  DeviceArray<T> seen(1);
  memory.values[0] = 0;
  for (int round = 0; round < 50; ++round) {
    CUDA(cudaLaunchHostFunc(
        one, [](void* flag) { *static_cast<volatile T*>(flag) = 1; }, memory.values));
    while (*static_cast<volatile T*>(memory.values) != 1) std::this_thread::yield();
    memory.values[0] = 0;
    copy_one<<<1, 1, 0, other>>>(memory.values, seen.get());
    CUDA(cudaGetLastError());
    T found = 1;
    CUDA(cudaMemcpyAsync(&found, seen.get(), sizeof found, cudaMemcpyDeviceToHost, other));
    other.wait();
    CHECK(found == 0);
    one.wait();
    CHECK(memory.values[0] == 0);
  }
  std::printf("behind a host function\n");
}

// A host function writes for the next kernel in its stream, while another stream gets work all the
// time.
template <typename T>
void beside_launches(Mapped<T>& memory) {
  Stream one, other;
  DeviceArray<unsigned long long> sum(1);
  DeviceArray<T> ignored(1);
  struct Function {
    Mapped<T>* memory;
    int value;
    std::atomic<bool> is_over{false};
  } function{&memory, 0};
  for (int round = 1; round <= 10; ++round) {
    sum.clear();
    function.value = round;
    function.is_over = false;
    CUDA(cudaLaunchHostFunc(
        one,
        [](void* argument) {
          auto* const mine = static_cast<Function*>(argument);
          mine->memory->write(1, mine->value);
          mine->is_over = true;
        },
        &function));
    add_up<<<8, 128, 0, one>>>(memory.values, memory.count, 1, sum.get());
    CUDA(cudaGetLastError());
    while (!function.is_over) copy_one<<<1, 1, 0, other>>>(memory.values, ignored.get());
    one.wait();
    unsigned long long expected = 0;
    for (int i = 1; i < memory.count; i += 4) expected += static_cast<T>(round + i / 4);
    CHECK(sum.values()[0] == expected);
    other.wait();
    memory.expect(1, round);
  }
  std::printf("beside launches\n");
}

// A kernel runs until the host writes to the memory, and the host's next call is one that waits for
// the kernel.
template <typename T>
void held_by_the_host(Mapped<T>& memory) {
  Stream stream;
  cudaEvent_t event;
  CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  DeviceArray<T> there(1);
  T ignored, value = 100;
  const auto hold = [&] {
    await<<<1, 1, 0, stream>>>(memory.values, ++value);
    CUDA(cudaEventRecord(event, stream));
    CUDA(cudaGetLastError());
  };
  const auto wait = [&](auto&& call) {
    hold();
    memory.values[0] = value;
    call();
    CUDA(cudaStreamQuery(stream));
  };
  memory.values[0] = 0;
  wait([&] { stream.wait(); });
  wait([&] { CUDA(cudaDeviceSynchronize()); });
  wait([&] { CUDA(cudaEventSynchronize(event)); });
  wait([&] {
    while (cudaStreamQuery(stream) == cudaErrorNotReady) std::this_thread::yield();
  });
  wait([&] {
    while (cudaEventQuery(event) == cudaErrorNotReady) std::this_thread::yield();
  });
  wait([&] {
    CUDA(cudaMemcpyAsync(&ignored, there.get(), sizeof ignored, cudaMemcpyDeviceToHost, stream));
  });
  wait([&] {
    T* freed;
    CUDA(cudaMalloc(&freed, 64));
    CUDA(cudaFree(freed));
  });
  CUDA(cudaEventDestroy(event));
  std::printf("held by the host\n");
}

template <typename T>
void all(const char* name, int count) {
  std::printf("%s\n", name);
  Mapped<T> memory(count);
  beside_results(memory);
  set_back(memory);
  beside_a_host_function(memory);
  behind_a_host_function(memory);
  beside_launches(memory);
  held_by_the_host(memory);
}

}  // namespace

int main() {
  all<unsigned>("a page of words", 1024);
  all<unsigned>("many words", 300'001);
  all<unsigned char>("a page of bytes", 4096);
  all<unsigned char>("many bytes", 300'001);
  return 0;
}
