// One pass over the figures that remote_vs_native compares. Prints "name value" lines: microseconds
// for latencies, GB/s (10^9 bytes) for copies. A plain CUDA program: the way it is started decides
// whether its device is local or remote.
//
//   figures            everything except the start of the process
//   figures --first    only a first result, for timing a whole process
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <cuda.h>
#include <cuda_runtime.h>

#include "../cuda_bench.h"

__global__ void empty() {}
__global__ void spin(long long cycles) {
  const long long end = clock64() + cycles;
  while (clock64() < end) {
  }
}

// Median of `rounds` timings of `work`, each over `count` calls, in microseconds a call.
template <typename Work>
double median_us(int rounds, int count, const Work& work) {
  std::vector<double> times;
  for (int round = 0; round < rounds; ++round) {
    const auto start = Clock::now();
    for (int i = 0; i < count; ++i) work();
    times.push_back(us_since(start) / count);
  }
  return median(times);
}

void print(const char* name, double value) { std::printf("%s %.4g\n", name, value); }

// The driver's own entry point, below the CUDA runtime. It shows the part of a launch that the
// driver, or rcuda's client, takes.
decltype(&cuLaunchKernel) driver_launch() {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found;
  CHECK(
      cudaGetDriverEntryPointByVersion("cuLaunchKernel", &entry, 12000, cudaEnableDefault, &found));
  return reinterpret_cast<decltype(&cuLaunchKernel)>(entry);
}

// A step like that of a simulation: kernels, a number for the host, an event, more kernels, and
// then a wait for the event.
auto step_with_an_event(cudaEvent_t event) {
  int *number, *on_host;
  CHECK(cudaMalloc(&number, sizeof *number));
  CHECK(cudaMallocHost(&on_host, sizeof *on_host));
  cudaStream_t stream;
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return [=] {
    for (int i = 0; i < 12; ++i) empty<<<1, 1, 0, stream>>>();
    cudaMemcpyAsync(on_host, number, sizeof *number, cudaMemcpyDeviceToHost, stream);
    cudaEventRecord(event, stream);
    for (int i = 0; i < 12; ++i) empty<<<1, 1, 0, stream>>>();
    cudaEventSynchronize(event);
  };
}

// The first query of an event's record, when launches were queued after the record. PyTorch's
// allocator makes such queries.
double first_query_us(cudaEvent_t event) {
  std::vector<double> times;
  for (int round = 0; round < 100; ++round) {
    CHECK(cudaEventRecord(event));
    for (int i = 0; i < 50; ++i) empty<<<1, 1>>>();
    const auto start = Clock::now();
    cudaEventQuery(event);
    times.push_back(us_since(start));
    CHECK(cudaDeviceSynchronize());
  }
  return median(times);
}

void latencies() {
  for (int i = 0; i < 100; ++i) empty<<<1, 1>>>();
  CHECK(cudaDeviceSynchronize());
  cudaFunction_t function;
  CHECK(cudaGetFuncBySymbol(&function, reinterpret_cast<const void*>(empty)));
  const auto launch = driver_launch();
  std::vector<double> part, queued, total;
  for (int round = 0; round < 9; ++round) {
    // 500 launches fit into every queue, so the caller never waits for a free entry.
    auto start = Clock::now();
    for (int i = 0; i < 500; ++i) launch(function, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr);
    part.push_back(us_since(start) / 500);
    CHECK(cudaDeviceSynchronize());
    start = Clock::now();
    for (int i = 0; i < 500; ++i) empty<<<1, 1>>>();
    queued.push_back(us_since(start) / 500);
    CHECK(cudaDeviceSynchronize());
    const auto rate_start = Clock::now();
    for (int i = 0; i < 20000; ++i) empty<<<1, 1>>>();
    CHECK(cudaDeviceSynchronize());
    total.push_back(us_since(rate_start) / 20000);
  }
  print("queue_driver_part_us", median(part));
  print("queue_a_launch_us", median(queued));
  print("launch_carried_out_us", median(total));
  print("launch_and_synchronize_us", median_us(9, 500, [] {
          empty<<<1, 1>>>();
          cudaStreamSynchronize(0);
        }));
  cudaEvent_t event;
  CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  print("step_with_an_event_us", median_us(9, 200, step_with_an_event(event)));
  CHECK(cudaEventRecord(event));
  CHECK(cudaDeviceSynchronize());
  print("event_query_done_us", median_us(9, 2000, [&] { cudaEventQuery(event); }));
  spin<<<1, 1>>>(200'000'000);
  CHECK(cudaEventRecord(event));
  print("event_query_pending_us", median_us(5, 500, [&] { cudaEventQuery(event); }));
  CHECK(cudaDeviceSynchronize());
  print("first_query_after_launches_us", first_query_us(event));
  print("malloc_and_free_1mb_us", median_us(9, 100, [] {
          void* memory;
          cudaMalloc(&memory, 1 << 20);
          cudaFree(memory);
        }));
}

void copies() {
  const size_t largest = 256u << 20;
  void *device, *pinned;
  CHECK(cudaMalloc(&device, largest));
  CHECK(cudaMallocHost(&pinned, largest));
  void* pageable = std::malloc(largest);
  std::memset(pageable, 1, largest);
  std::memset(pinned, 1, largest);
  struct {
    const char* name;
    void* host;
    cudaMemcpyKind kind;
  } const ways[] = {{"pageable_h2d", pageable, cudaMemcpyHostToDevice},
                    {"pageable_d2h", pageable, cudaMemcpyDeviceToHost},
                    {"pinned_h2d", pinned, cudaMemcpyHostToDevice},
                    {"pinned_d2h", pinned, cudaMemcpyDeviceToHost}};
  for (const auto& way : ways) {
    const bool up = way.kind == cudaMemcpyHostToDevice;
    const auto copy = [&](size_t bytes) {
      CHECK(cudaMemcpy(up ? device : way.host, up ? way.host : device, bytes, way.kind));
    };
    copy(largest);
    char name[64];
    std::snprintf(name, sizeof name, "%s_4b_us", way.name);
    print(name, median_us(9, 200, [&] { copy(4); }));
    for (size_t bytes :
         {size_t{4} << 10, size_t{64} << 10, size_t{1} << 20, size_t{16} << 20, largest}) {
      const int count = bytes >= (16u << 20) ? 3 : 50;
      // A copy to the device may return before its DMA has run, so each round waits for its last
      // copy.
      std::vector<double> times;
      for (int round = 0; round < 7; ++round) {
        CHECK(cudaDeviceSynchronize());
        const auto start = Clock::now();
        for (int i = 0; i < count; ++i) copy(bytes);
        CHECK(cudaDeviceSynchronize());
        times.push_back(us_since(start) / 1e6 / count);
      }
      std::snprintf(name, sizeof name, "%s_%zuk_gbps", way.name, bytes >> 10);
      print(name, static_cast<double>(bytes) / median(times) / 1e9);
    }
  }
  std::free(pageable);
  CHECK(cudaFreeHost(pinned));
  CHECK(cudaFree(device));
}

int main(int argc, char** argv) {
  if (argc > 1 && std::strcmp(argv[1], "--first") == 0) {
    int* out;
    int value = 0;
    CHECK(cudaMalloc(&out, sizeof *out));
    CHECK(cudaMemset(out, 1, sizeof *out));
    empty<<<1, 1>>>();
    CHECK(cudaMemcpy(&value, out, sizeof value, cudaMemcpyDeviceToHost));
    return value == 0x01010101 ? 0 : 1;
  }
  latencies();
  copies();
}
