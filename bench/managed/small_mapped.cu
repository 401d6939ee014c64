// Measures a launch and the wait for it while the program has small page-locked allocations that
// kernels may use. Over TCP and verbs, client and worker each have a copy of these allocations, so
// every wait must find out what the GPU has changed.
//
// `small_mapped [ALLOCATIONS...]` prints medians in microseconds: for each number of allocations of
// 4 bytes, with a kernel that writes to none, one or all of them.
#include <set>
#include <vector>

#include "../cuda_bench.h"

namespace {

__global__ void write_to(int** flags, int count, int value) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) *flags[i] = value;
}

double round_us(int** on_device, const std::vector<int*>& flags, int written) {
  constexpr int kRounds = 200;
  std::vector<double> times;
  for (int round = 1; round <= kRounds; ++round) {
    const auto begin = Clock::now();
    write_to<<<written / 256 + 1, 256>>>(on_device, written, round);
    CHECK(cudaDeviceSynchronize());
    times.push_back(us_since(begin));
    for (int i = 0; i < written; ++i) {
      if (*flags[i] == round) continue;
      std::fprintf(stderr, "small_mapped: flag %d is %d in round %d\n", i, *flags[i], round);
      std::exit(1);
    }
  }
  return median(times);
}

void measure(int count) {
  std::vector<int*> flags(count), pointers(count);
  for (int i = 0; i < count; ++i) {
    CHECK(cudaHostAlloc(&flags[i], sizeof(int), cudaHostAllocMapped));
    CHECK(cudaHostGetDevicePointer(&pointers[i], flags[i], 0));
  }
  int** on_device = nullptr;
  CHECK(cudaMalloc(&on_device, (count + 1) * sizeof(int*)));
  CHECK(cudaMemcpy(on_device, pointers.data(), count * sizeof(int*), cudaMemcpyHostToDevice));
  for (const int written : std::set<int>{0, std::min(count, 1), count}) {
    std::printf("%d_allocations_%d_written_us %.1f\n", count, written,
                round_us(on_device, flags, written));
  }
  for (int* flag : flags) CHECK(cudaFreeHost(flag));
  CHECK(cudaFree(on_device));
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<int> counts;
  for (int i = 1; i < argc; ++i) counts.push_back(std::atoi(argv[i]));
  if (counts.empty()) counts = {0, 1, 100, 1000, 10000};
  for (const int count : counts) measure(count);
  return 0;
}
