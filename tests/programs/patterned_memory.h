// Device memory with a pattern of bytes, and checks for a pattern.
#pragma once

#include <cstdint>
#include <cstdio>
#include <vector>

#include "program.h"

namespace {

__host__ __device__ unsigned char pattern(uint64_t i, unsigned seed) {
  return static_cast<unsigned char>((i * 2654435761u + seed * 40503u) >> 7);
}

__global__ void fill(unsigned char* bytes, uint64_t n, unsigned seed) {
  for (uint64_t i = blockIdx.x * uint64_t{blockDim.x} + threadIdx.x; i < n;
       i += uint64_t{gridDim.x} * blockDim.x) {
    bytes[i] = pattern(i, seed);
  }
}

__global__ void add(unsigned char* bytes, uint64_t n, unsigned char value) {
  for (uint64_t i = blockIdx.x * uint64_t{blockDim.x} + threadIdx.x; i < n;
       i += uint64_t{gridDim.x} * blockDim.x) {
    bytes[i] += value;
  }
}

// Device memory of one device, freed with its device current.
struct Memory {
  Memory(int on, uint64_t n) : device(on), bytes(n) {
    CUDA(cudaSetDevice(device));
    CUDA(cudaMalloc(&data, n));
  }
  ~Memory() {
    cudaSetDevice(device);
    cudaFree(data);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  void fill_with(unsigned seed, cudaStream_t stream) {
    CUDA(cudaSetDevice(device));
    fill<<<32, 128, 0, stream>>>(data, bytes, seed);
    CUDA(cudaGetLastError());
  }
  void set(int value) {
    CUDA(cudaSetDevice(device));
    CUDA(cudaMemset(data, value, bytes));
    CUDA(cudaDeviceSynchronize());
  }
  std::vector<unsigned char> values() const {
    std::vector<unsigned char> all(bytes);
    CUDA(cudaSetDevice(device));
    CUDA(cudaMemcpy(all.data(), data, bytes, cudaMemcpyDeviceToHost));
    return all;
  }

  const int device;
  const uint64_t bytes;
  unsigned char* data = nullptr;
};

bool holds(const std::vector<unsigned char>& values, uint64_t at, uint64_t n, uint64_t first,
           unsigned seed, unsigned char plus = 0) {
  for (uint64_t i = 0; i < n; ++i) {
    if (values[at + i] != static_cast<unsigned char>(pattern(first + i, seed) + plus)) {
      std::fprintf(stderr, "byte %llu of %llu is %u\n", static_cast<unsigned long long>(i),
                   static_cast<unsigned long long>(n), values[at + i]);
      return false;
    }
  }
  return true;
}

bool untouched(const std::vector<unsigned char>& values, uint64_t from, uint64_t to) {
  for (uint64_t i = from; i < to; ++i) {
    if (values[i] != 0xee) return false;
  }
  return true;
}

}  // namespace
