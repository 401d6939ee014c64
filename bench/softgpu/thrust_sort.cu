// thrust::sort of some million ints, on any driver: the first sort, which loads the kernels, and
// the best of three more, in wall-clock time and in processor time of the process.
//
//   thrust_sort [MILLIONS]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <vector>

#include <thrust/device_vector.h>
#include <thrust/sort.h>

namespace {

struct Seconds {
  double clock, processor;
};

Seconds now() {
  timespec spent{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &spent);
  const auto elapsed = std::chrono::steady_clock::now().time_since_epoch();
  return {std::chrono::duration<double>(elapsed).count(),
          static_cast<double>(spent.tv_sec) + static_cast<double>(spent.tv_nsec) * 1e-9};
}

Seconds sort(const std::vector<int>& values, const std::vector<int>& expected) {
  thrust::device_vector<int> device(values.begin(), values.end());
  cudaDeviceSynchronize();
  const Seconds begin = now();
  thrust::sort(device.begin(), device.end());
  cudaDeviceSynchronize();
  const Seconds end = now();
  std::vector<int> sorted(values.size());
  thrust::copy(device.begin(), device.end(), sorted.begin());
  if (sorted != expected) {
    std::fprintf(stderr, "thrust_sort: the result is not sorted\n");
    std::exit(1);
  }
  return {end.clock - begin.clock, end.processor - begin.processor};
}

}  // namespace

int main(int argc, char** argv) {
  const double millions = argc > 1 ? std::atof(argv[1]) : 1;
  std::vector<int> values(static_cast<size_t>(millions * 1e6));
  unsigned state = 1;
  for (int& value : values) {
    state = state * 1664525u + 1013904223u;
    value = static_cast<int>(state);
  }
  std::vector<int> expected = values;
  std::sort(expected.begin(), expected.end());
  const Seconds first = sort(values, expected);
  Seconds best = sort(values, expected);
  for (int k = 0; k < 2; ++k) {
    const Seconds again = sort(values, expected);
    best = {std::min(best.clock, again.clock), std::min(best.processor, again.processor)};
  }
  std::printf(
      "thrust::sort of %g million ints: first %.2f s, best %.2f s (%.2f s of processor time)\n",
      millions, first.clock, best.clock, best.processor);
}
