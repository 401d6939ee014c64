// Shared by the test programs: CUDA calls that must succeed, or fail with one error; device arrays;
// digests.
//
// A program prints its results (no addresses, times or device names, so that the output is the same
// on every GPU and on softgpu), and exits with 0 if every check has passed. It does not depend on
// rcuda.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <cuda_runtime.h>

inline void fail(const char* file, int line, const char* what, const char* why) {
  std::fprintf(stderr, "%s:%d: %s: %s\n", file, line, what, why);
  std::fflush(stdout);
  std::_Exit(1);
}

#define CHECK(condition)                                                     \
  do {                                                                       \
    if (!(condition)) fail(__FILE__, __LINE__, #condition, "does not hold"); \
  } while (0)

// The call must return exactly `expected`.
#define EXPECT(expected, call)                                                           \
  do {                                                                                   \
    const cudaError_t error_ = (call);                                                   \
    if (error_ != (expected)) fail(__FILE__, __LINE__, #call, cudaGetErrorName(error_)); \
  } while (0)

#define CUDA(call) EXPECT(cudaSuccess, call)

// For use after a kernel launch: checks that the launch succeeded, that the kernel has run, and
// that there is no error.
#define FINISH()                   \
  do {                             \
    CUDA(cudaGetLastError());      \
    CUDA(cudaDeviceSynchronize()); \
  } while (0)

// An array in device memory, freed at the end of its scope.
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t count) : count_(count) { CUDA(cudaMalloc(&data_, bytes())); }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) { put(values); }
  ~DeviceArray() { cudaFree(data_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T* get() const { return data_; }
  size_t size() const { return count_; }
  size_t bytes() const { return count_ * sizeof(T); }
  // Both are complete when they return, also for streams that do not wait for the default stream.
  void put(const std::vector<T>& values) {
    CUDA(cudaMemcpy(data_, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
    CUDA(cudaStreamSynchronize(nullptr));
  }
  void clear() {
    CUDA(cudaMemset(data_, 0, bytes()));
    CUDA(cudaStreamSynchronize(nullptr));
  }
  std::vector<T> values() const {
    std::vector<T> result(count_);
    CUDA(cudaMemcpy(result.data(), data_, bytes(), cudaMemcpyDeviceToHost));
    return result;
  }

 private:
  T* data_ = nullptr;
  size_t count_;
};

// FNV-1a over the bytes: one number for a whole result.
template <typename T>
uint64_t digest(const std::vector<T>& values) {
  uint64_t hash = 0xcbf29ce484222325ull;
  const unsigned char* bytes = reinterpret_cast<const unsigned char*>(values.data());
  for (size_t i = 0; i < values.size() * sizeof(T); ++i)
    hash = (hash ^ bytes[i]) * 0x100000001b3ull;
  return hash;
}

template <typename T>
void print_digest(const char* name, const std::vector<T>& values) {
  std::printf("%s: %016llx\n", name, static_cast<unsigned long long>(digest(values)));
}

// Gives the same numbers with every library, unlike the distributions of <random>.
class Random {
 public:
  explicit Random(uint64_t seed = 1) : state_(seed) {}
  uint32_t next() {
    state_ = state_ * 6364136223846793005ull + 1442695040888963407ull;
    return static_cast<uint32_t>(state_ >> 33);
  }
  uint32_t below(uint32_t limit) { return next() % limit; }

 private:
  uint64_t state_;
};
