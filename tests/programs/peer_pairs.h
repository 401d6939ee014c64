// For programs that test copies between devices: a test for each pair of neighbouring devices, and
// a stream on each device. With one device, the copies stay on it. The output does not depend on
// the number of devices.
#pragma once

#include <cstdio>
#include <vector>

#include "patterned_memory.h"
#include "program.h"

namespace {

int devices = 0;
std::vector<cudaStream_t> streams;

void make_streams() {
  CUDA(cudaGetDeviceCount(&devices));
  streams.resize(devices);
  for (int d = 0; d < devices; ++d) {
    CUDA(cudaSetDevice(d));
    CUDA(cudaStreamCreateWithFlags(&streams[d], cudaStreamNonBlocking));
  }
}

void destroy_streams() {
  for (int d = 0; d < devices; ++d) {
    CUDA(cudaSetDevice(d));
    CUDA(cudaStreamDestroy(streams[d]));
  }
}

void synchronize_all() {
  for (int d = 0; d < devices; ++d) {
    CUDA(cudaSetDevice(d));
    CUDA(cudaDeviceSynchronize());
  }
}

void all_pairs(const char* what, void (*test)(int from, int to)) {
  for (int from = 0; from < devices; ++from) {
    test(from, (from + 1) % devices);
  }
  std::printf("%s hold\n", what);
}

}  // namespace
