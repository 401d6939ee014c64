// Managed memory by access pattern. Prints "name value" lines: microseconds for one round of each
// pattern. The way the program is started decides whether its device is local or remote.
//
//   managed             the patterns, for remote_vs_native.py
//   managed --moved     instead of times: the megabytes that the loopback interface carried. Over
//                       TCP to a server on this machine these are the bytes that travelled.
//   managed --updates   how many updates are kept if device and host update words concurrently
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <thread>
#include <vector>

#include <cuda_runtime.h>

#include "../cuda_bench.h"

namespace {

constexpr size_t kCount = 32 << 20;  // ints: 128 MiB
constexpr size_t kPage = 4096 / sizeof(int);

__global__ void add(int* values, size_t count, int more) {
  for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
    values[i] += more;
}

__global__ void count_up(unsigned* counters, int rounds) {
  for (int i = 0; i < rounds; ++i) atomicAdd_system(&counters[threadIdx.x % 8], 1u);
}

__global__ void largest(const int* values, size_t count, int* result) {
  int most = 0;
  for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
    most = max(most, values[i]);
  if (most > *result) atomicMax(result, most);
}

void launch(int* values, size_t count) {
  add<<<1024, 256>>>(values, count, 1);
  CHECK(cudaGetLastError());
}

bool count_bytes = false;

// Returns the number of bytes that the loopback interface has sent since the boot.
double loopback_bytes() {
  std::ifstream file("/sys/class/net/lo/statistics/tx_bytes");
  double bytes = 0;
  file >> bytes;
  return bytes;
}

template <typename Work>
void measure(const char* name, int rounds, const Work& work) {
  work();
  if (count_bytes) {
    const double before = loopback_bytes();
    work();
    std::printf("%.*s_mb %.3f\n", static_cast<int>(std::strlen(name) - 3), name,
                (loopback_bytes() - before) / 1e6);
    return;
  }
  std::vector<double> times;
  for (int round = 0; round < rounds; ++round) {
    const auto start = Clock::now();
    work();
    times.push_back(us_since(start));
  }
  std::printf("%s %.5g\n", name, median(times));
}

void patterns() {
  int *values = nullptr, *result = nullptr;
  CHECK(cudaMallocManaged(&values, kCount * sizeof(int)));
  CHECK(cudaMallocManaged(&result, sizeof(int)));
  *result = 0;
  std::memset(values, 0, kCount * sizeof(int));
  const cudaMemLocation device = {cudaMemLocationTypeDevice, 0},
                        host = {cudaMemLocationTypeHost, 0};
  volatile int sink = 0;

  measure("device_only_20_kernels_us", 5, [&] {
    for (int i = 0; i < 20; ++i) launch(values, kCount);
    CHECK(cudaDeviceSynchronize());
  });
  measure("host_writes_device_adds_host_reads_us", 5, [&] {
    for (size_t i = 0; i < kCount; ++i) values[i] = static_cast<int>(i);
    launch(values, kCount);
    CHECK(cudaDeviceSynchronize());
    long long sum = 0;
    for (size_t i = 0; i < kCount; ++i) sum += values[i];
    sink = static_cast<int>(sum);
  });
  measure("the_same_with_prefetch_us", 5, [&] {
    for (size_t i = 0; i < kCount; ++i) values[i] = static_cast<int>(i);
    CHECK(cudaMemPrefetchAsync(values, kCount * sizeof(int), device, 0, nullptr));
    launch(values, kCount);
    CHECK(cudaMemPrefetchAsync(values, kCount * sizeof(int), host, 0, nullptr));
    CHECK(cudaDeviceSynchronize());
    long long sum = 0;
    for (size_t i = 0; i < kCount; ++i) sum += values[i];
    sink = static_cast<int>(sum);
  });
  measure("host_writes_64_pages_device_adds_all_us", 5, [&] {
    for (size_t page = 0; page < 64; ++page) values[page * (kCount / 64)] += 1;
    launch(values, kCount);
    CHECK(cudaDeviceSynchronize());
  });
  measure("host_and_device_add_in_turn_4_times_us", 3, [&] {
    for (int turn = 0; turn < 4; ++turn) {
      for (size_t i = 0; i < kCount; ++i) values[i] += 1;
      launch(values, kCount);
      CHECK(cudaDeviceSynchronize());
    }
  });
  measure("device_only_reads_us", 5, [&] {
    largest<<<1024, 256>>>(values, kCount, result);
    CHECK(cudaDeviceSynchronize());
    sink = *result;
  });
  measure("solver_20_steps_host_reads_a_word_us", 5, [&] {
    for (int step = 0; step < 20; ++step) {
      launch(values, kCount);
      largest<<<1024, 256>>>(values, kCount, result);
      CHECK(cudaDeviceSynchronize());
      sink = *result;
    }
  });
  measure("one_word_back_us", 50, [&] {
    launch(values, 1);
    CHECK(cudaDeviceSynchronize());
    sink = values[0];
  });
  measure("host_reads_one_word_of_all_us", 5, [&] {
    launch(values, kCount);
    CHECK(cudaDeviceSynchronize());
    sink = values[kCount / 2 + kPage];
  });
  CHECK(cudaFree(values));
  CHECK(cudaFree(result));
  measure("allocate_touch_free_1mb_us", 20, [&] {
    int* small = nullptr;
    CHECK(cudaMallocManaged(&small, 1 << 20));
    small[0] = 1;
    launch(small, (1 << 20) / sizeof(int));
    CHECK(cudaDeviceSynchronize());
    sink = small[0];
    CHECK(cudaFree(small));
  });
  (void)sink;
}

int attribute(cudaDeviceAttr which) {
  int value = -1;
  CHECK(cudaDeviceGetAttribute(&value, which, 0));
  return value;
}

// Eight counters that 256 threads of a kernel and two threads of the host increment concurrently.
void updates(const char* memory, unsigned* counters) {
  constexpr int kRounds = 20000, kThreads = 256, kHostThreads = 2, kHostRounds = 400000;
  std::memset(counters, 0, 8 * sizeof *counters);
  std::atomic<bool> go{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < kHostThreads; ++t) {
    threads.emplace_back([&] {
      while (!go) std::this_thread::yield();
      for (int i = 0; i < kHostRounds; ++i)
        __atomic_fetch_add(&counters[i % 8], 1u, __ATOMIC_SEQ_CST);
    });
  }
  count_up<<<1, kThreads>>>(counters, kRounds);
  CHECK(cudaGetLastError());
  go = true;
  for (auto& thread : threads) thread.join();
  CHECK(cudaDeviceSynchronize());
  unsigned long long sum = 0;
  for (int i = 0; i < 8; ++i) sum += counters[i];
  const long long all = 1ll * kThreads * kRounds + 1ll * kHostThreads * kHostRounds;
  std::printf("%s: %llu of %lld updates kept\n", memory, sum, all);
}

void both_sides() {
  std::printf(
      "concurrentManagedAccess %d, hostNativeAtomicSupported %d, pageableMemoryAccess %d, "
      "directManagedMemAccessFromHost %d\n",
      attribute(cudaDevAttrConcurrentManagedAccess),
      attribute(cudaDevAttrHostNativeAtomicSupported), attribute(cudaDevAttrPageableMemoryAccess),
      attribute(cudaDevAttrDirectManagedMemAccessFromHost));
  unsigned *managed = nullptr, *mapped = nullptr;
  CHECK(cudaMallocManaged(&managed, 4096));
  CHECK(cudaHostAlloc(&mapped, 4096, cudaHostAllocMapped));
  updates("managed", managed);
  updates("mapped", mapped);
  if (attribute(cudaDevAttrPageableMemoryAccess)) {
    updates("malloc", static_cast<unsigned*>(std::aligned_alloc(4096, 4096)));
  }
}

}  // namespace

int main(int count, char** arguments) {
  if (count > 1 && !std::strcmp(arguments[1], "--updates")) {
    both_sides();
  } else {
    count_bytes = count > 1 && !std::strcmp(arguments[1], "--moved");
    patterns();
  }
}
