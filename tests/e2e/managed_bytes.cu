// Uses 16 MiB of managed memory in the way that the argument names. managed_bytes_test.py counts
// the bytes that travel. "memory" prints the size of the client's buffers at the end. "frees" uses
// other memory.
#include <cstring>
#include <fstream>
#include <string>

#include "program.h"

constexpr int kCount = 4 << 20;

__global__ void add(int* values, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    ++values[i];
}

__global__ void read(const int* values, int n, int* result) {
  int most = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    most = max(most, values[i]);
  atomicMax(result, most);
}

size_t resident_in_buffers() {
  std::ifstream file("/proc/self/smaps");
  size_t all = 0;
  bool is_buffer = false;
  for (std::string line; std::getline(file, line);) {
    const std::string first = line.substr(0, line.find(' '));
    if (first.find('-') != std::string::npos) {
      is_buffer = line.find("rcuda-mirror") != std::string::npos;
    } else if (is_buffer && first == "Rss:") {
      all += std::stoul(line.substr(first.size())) << 10;
    }
  }
  return all;
}

// Allocates, uses and frees managed memory three times. With a host function, the function is still
// queued when the memory is freed.
void allocate_use_free(bool with_host_function) {
  for (int round = 0; round < 3; ++round) {
    int* values;
    CUDA(cudaMallocManaged(&values, 1 << 20));
    values[0] = round;
    add<<<1, 1>>>(values, 1);
    CUDA(cudaGetLastError());
    CUDA(cudaStreamSynchronize(nullptr));
    CHECK(values[0] == round + 1);
    if (with_host_function) {
      CUDA(cudaLaunchHostFunc(
          nullptr, [](void* word) { CHECK(*static_cast<volatile int*>(word) != 0); }, values));
    }
    CUDA(cudaFree(values));
  }
}

int main(int, char** arguments) {
  const std::string way = arguments[1];
  if (way == "frees") {
    allocate_use_free(false);
    allocate_use_free(true);
    return 0;
  }
  int *values, *result;
  CUDA(cudaMallocManaged(&values, kCount * sizeof(int)));
  CUDA(cudaMallocManaged(&result, sizeof(int)));
  for (int i = 0; i < kCount; ++i) values[i] = i;
  const auto step = [&] {
    if (way == "reads") {
      read<<<16, 256>>>(values, kCount, result);
    } else {
      add<<<16, 256>>>(values, way == "word" ? 1 : kCount);
    }
    FINISH();
  };
  step();
  for (int round = 0; round < 4; ++round) {
    step();
    if (way == "word") CHECK(values[0] == round + 2);
  }
  if (way == "memory") {
    for (int wait = 0; wait < 20; ++wait) {  // waits that fetch nothing of `values`
      read<<<1, 1>>>(values, 1, result);
      FINISH();
    }
    std::printf("%zu\n", resident_in_buffers());
  }
  if (way == "all" || way == "memory") {
    for (int i = 0; i < kCount; ++i) CHECK(values[i] == i + 5);
  }
}
