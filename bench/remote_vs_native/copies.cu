// Measures single copies and their waits, by kind of host memory and size. Prints "name value"
// lines, medians in microseconds: page-locked memory with an asynchronous call and a wait
// (`async`), the call alone (`issue`), a blocking call (`blocking`), and pageable memory with a
// blocking call. Each copy uses other host memory than the previous copy, so its bytes are not in
// the processor's caches. remote_vs_native.py --copies runs this program.
//
//   copies [--pause US] [SIZE]...
//
// Sizes: 64k 128k 192k 256k 512k 1m 4m 16m 64m; by default those from 512k on. --pause: the host
// works for this time between two copies.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <cuda_runtime.h>

#include "../cuda_bench.h"

namespace {

constexpr size_t kMost = 64u << 20, kWalk = 2 * kMost;
constexpr struct {
  const char* name;
  size_t bytes;
} kSizes[] = {{"64k", 64u << 10},   {"128k", 128u << 10}, {"192k", 192u << 10},
              {"256k", 256u << 10}, {"512k", 512u << 10}, {"1m", 1u << 20},
              {"4m", 4u << 20},     {"16m", 16u << 20},   {"64m", 64u << 20}};
constexpr size_t kLeastByDefault = 512u << 10;

double pause_us = 0;

// Calls copy() with offsets in the host's memory. Returns the time of each call in microseconds.
template <typename Copy>
std::vector<double> times_of(size_t bytes, const Copy& copy) {
  const int rounds = bytes > (8u << 20) ? 30 : 150;
  std::vector<double> times;
  size_t at = 0;
  for (int i = -3; i < rounds; ++i, at = at + 2 * bytes > kWalk ? 0 : at + bytes) {
    const auto begin = Clock::now();
    while (us_since(begin) < pause_us) {
    }
    const auto start = Clock::now();
    copy(at);
    if (i >= 0) times.push_back(us_since(start));
  }
  return times;
}

void print(const char* what, bool up, const char* size, std::vector<double> times) {
  std::printf("%s_%s_%s_us %.4g\n", what, up ? "h2d" : "d2h", size, median(times));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 2 && std::strcmp(argv[1], "--pause") == 0) {
    pause_us = std::atof(argv[2]);
    argc -= 2;
    argv += 2;
  }
  cudaStream_t stream;
  char *device, *pinned;
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CHECK(cudaMalloc(&device, kMost));
  CHECK(cudaMallocHost(&pinned, kWalk));
  char* const pageable = static_cast<char*>(std::malloc(kWalk));
  std::fill(pinned, pinned + kWalk, 1);
  std::fill(pageable, pageable + kWalk, 1);
  for (const bool up : {true, false}) {
    for (const auto& [name, bytes] : kSizes) {
      const bool is_named = std::any_of(argv + 1, argv + argc, [name = name](const char* size) {
        return std::strcmp(size, name) == 0;
      });
      if (argc > 1 ? !is_named : bytes < kLeastByDefault) continue;
      std::vector<double> issued;
      print("async", up, name, times_of(bytes, [&, size = bytes](size_t at) {
              const auto start = Clock::now();
              CHECK(cudaMemcpyAsync(up ? device : pinned + at, up ? pinned + at : device, size,
                                    cudaMemcpyDefault, stream));
              issued.push_back(us_since(start));
              CHECK(cudaStreamSynchronize(stream));
            }));
      print("issue", up, name, issued);
      for (char* host : {pinned, pageable}) {
        print(host == pinned ? "blocking" : "pageable", up, name,
              times_of(bytes, [&, host, size = bytes](size_t at) {
                CHECK(cudaMemcpy(up ? device : host + at, up ? host + at : device, size,
                                 up ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost));
              }));
      }
    }
  }
  return 0;
}
