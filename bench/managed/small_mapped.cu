// Measures a launch and the wait for it while the program has small page-locked allocations that
// kernels may use. Over TCP and verbs, client and worker each have a copy of these allocations, so
// every wait must find out what the GPU has changed.
//
// `small_mapped [ALLOCATIONS[xBYTES]...]` prints medians in microseconds: for each number of
// allocations of BYTES bytes (4), with a kernel that writes to none, one or all of them. For many
// allocations, it also prints the median distance between their addresses, and the time of a plain
// loop that compares all of them with a copy. Client and worker cannot be faster than this loop.
#include <algorithm>
#include <cstring>
#include <set>
#include <utility>
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

void print_places(const char* name, const std::vector<int*>& flags, size_t bytes) {
  constexpr size_t kMany = 1000, kLine = 64;
  if (flags.size() < kMany) return;
  std::vector<char*> sorted;
  for (int* flag : flags) sorted.push_back(reinterpret_cast<char*>(flag));
  std::sort(sorted.begin(), sorted.end());
  std::vector<double> distances, times;
  std::vector<std::pair<char*, size_t>> runs{{sorted[0], bytes}};
  for (size_t i = 1; i < sorted.size(); ++i) {
    distances.push_back(static_cast<double>(sorted[i] - sorted[i - 1]));
    char* const end = runs.back().first + runs.back().second;
    if (sorted[i] < end + kLine) {
      runs.back().second += sorted[i] + bytes - end;
    } else {
      runs.push_back({sorted[i], bytes});
    }
  }
  std::vector<char> copy;
  for (const auto& [begin, length] : runs) copy.insert(copy.end(), begin, begin + length);
  for (int round = 0; round < 200; ++round) {
    const auto begin = Clock::now();
    const char* at = copy.data();
    for (const auto& [from, length] : runs) {
      if (std::memcmp(from, at, length) != 0) std::exit(1);
      at += length;
    }
    times.push_back(us_since(begin));
  }
  std::printf("%s_allocations_distance_bytes %.0f\n%s_allocations_compared_us %.1f\n", name,
              median(distances), name, median(times));
}

void measure(const char* name) {
  const int count = std::atoi(name);
  const char* const size = std::strchr(name, 'x');
  const size_t bytes = size ? std::atoi(size + 1) : sizeof(int);
  std::vector<int*> flags(count), pointers(count);
  for (int i = 0; i < count; ++i) {
    CHECK(cudaHostAlloc(&flags[i], bytes, cudaHostAllocMapped));
    CHECK(cudaHostGetDevicePointer(&pointers[i], flags[i], 0));
  }
  print_places(name, flags, bytes);
  int** on_device = nullptr;
  CHECK(cudaMalloc(&on_device, (count + 1) * sizeof(int*)));
  CHECK(cudaMemcpy(on_device, pointers.data(), count * sizeof(int*), cudaMemcpyHostToDevice));
  for (const int written : std::set<int>{0, std::min(count, 1), count}) {
    std::printf("%s_allocations_%d_written_us %.1f\n", name, written,
                round_us(on_device, flags, written));
  }
  for (int* flag : flags) CHECK(cudaFreeHost(flag));
  CHECK(cudaFree(on_device));
}

}  // namespace

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) measure(argv[i]);
  if (argc > 1) return 0;
  for (const char* name : {"0", "1", "100", "1000", "10000", "10000x64"}) measure(name);
  return 0;
}
