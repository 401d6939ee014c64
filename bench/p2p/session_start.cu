// The time that a session takes to start, as CSV in milliseconds: the first CUDA call; the first
// work on every device; the first and the second copy from the first device to the last; a copy
// from each device of the first server to each of the last. A plain CUDA program, for
// session_start.py.
//
//   session_start [GPUS_PER_SERVER]
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <cuda_runtime.h>

#include "../cuda_bench.h"

int main(int argc, char** argv) {
  const int per_server = argc > 1 ? std::atoi(argv[1]) : 1;
  constexpr size_t kBytes = size_t{1} << 20;
  const auto ms_since = [](Clock::time_point begin) { return us_since(begin) * 1e-3; };

  Clock::time_point begin = Clock::now();
  int devices = 0;
  CHECK(cudaGetDeviceCount(&devices));
  CHECK(cudaFree(nullptr));
  const double first_call_ms = ms_since(begin);

  begin = Clock::now();
  std::vector<void*> memory(static_cast<size_t>(devices));
  for (int device = 0; device < devices; ++device) {
    CHECK(cudaSetDevice(device));
    CHECK(cudaMalloc(&memory[static_cast<size_t>(device)], kBytes));
    CHECK(cudaMemset(memory[static_cast<size_t>(device)], device, kBytes));
    CHECK(cudaDeviceSynchronize());
  }
  const double all_devices_ms = ms_since(begin);

  const auto copy_ms = [&](int from, int to) {
    const Clock::time_point start = Clock::now();
    CHECK(cudaMemcpyPeer(memory[static_cast<size_t>(to)], to, memory[static_cast<size_t>(from)],
                         from, kBytes));
    CHECK(cudaDeviceSynchronize());
    return ms_since(start);
  };
  const double first_copy_ms = copy_ms(0, devices - 1);
  const double second_copy_ms = copy_ms(0, devices - 1);
  begin = Clock::now();
  for (int from = 0; from < per_server; ++from) {
    for (int to = devices - per_server; to < devices; ++to) (void)copy_ms(from, to);
  }
  std::printf("devices,first_call_ms,all_devices_ms,first_copy_ms,second_copy_ms,pairs_ms\n");
  std::printf("%d,%.1f,%.1f,%.2f,%.2f,%.1f\n", devices, first_call_ms, all_devices_ms,
              first_copy_ms, second_copy_ms, ms_since(begin));
  return 0;
}
