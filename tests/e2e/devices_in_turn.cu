// cudaMemcpyPeer and cudaMemcpy3DPeer are ordered in the default streams of both devices: they run
// after the earlier work and before the later work of both devices.
#include "program.h"

__global__ void fill_slowly(int* values, int n, int seed) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  int value = seed;
  for (int round = 0; round < 2000; ++round) value = value * 1664525 + 1013904223;
  if (i < n) values[i] = value + i;
}

int slowly(int seed) {
  unsigned value = static_cast<unsigned>(seed);
  for (int round = 0; round < 2000; ++round) value = value * 1664525u + 1013904223u;
  return static_cast<int>(value);
}

bool holds(const std::vector<int>& values, int seed) {
  const int first = slowly(seed);
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] != first + static_cast<int>(i)) return false;
  }
  return true;
}

int main() {
  int devices = 0;
  CUDA(cudaGetDeviceCount(&devices));
  const int n = 1 << 16;
  const size_t bytes = n * sizeof(int);
  const int blocks = n / 256;
  for (int from = 0; from < devices; ++from) {
    const int to = (from + 1) % devices;
    CUDA(cudaSetDevice(from));
    DeviceArray<int> source(n);
    CUDA(cudaSetDevice(to));
    DeviceArray<int> destination(n);
    for (int round = 0; round < 4; ++round) {
      CUDA(cudaSetDevice(from));
      fill_slowly<<<blocks, 256>>>(source.get(), n, round);
      CUDA(cudaSetDevice(to));
      fill_slowly<<<blocks, 256>>>(destination.get(), n, -1);  // the copy overwrites it
      CUDA(cudaMemcpyPeer(destination.get(), to, source.get(), from, bytes));
      CUDA(cudaSetDevice(from));
      fill_slowly<<<blocks, 256>>>(source.get(), n, 99);  // too late to be copied
      CUDA(cudaSetDevice(to));
      CHECK(holds(destination.values(), round));
    }

    // The same with arrays. Just before, the source array is filled from the program's memory.
    constexpr size_t kWidth = 256, kHeight = 64;
    std::vector<unsigned char> given(kWidth * kHeight), got(given.size());
    const cudaChannelFormatDesc format = cudaCreateChannelDesc<unsigned char>();
    cudaArray_t before, after;
    CUDA(cudaSetDevice(to));
    CUDA(cudaMallocArray(&after, &format, kWidth, kHeight));
    CUDA(cudaSetDevice(from));
    CUDA(cudaMallocArray(&before, &format, kWidth, kHeight));
    for (unsigned round = 0; round < 4; ++round) {
      for (size_t i = 0; i < given.size(); ++i)
        given[i] = static_cast<unsigned char>(i * 7 + round);
      CUDA(cudaSetDevice(from));
      fill_slowly<<<blocks, 256>>>(source.get(), n, 5);
      CUDA(cudaMemcpy2DToArray(before, 0, 0, given.data(), kWidth, kWidth, kHeight,
                               cudaMemcpyHostToDevice));
      cudaMemcpy3DPeerParms box{};
      box.srcArray = before;
      box.dstArray = after;
      box.srcDevice = from;
      box.dstDevice = to;
      box.extent = make_cudaExtent(kWidth, kHeight, 1);
      CUDA(cudaMemcpy3DPeer(&box));
      CUDA(cudaSetDevice(to));
      CUDA(cudaMemcpy2DFromArray(got.data(), kWidth, after, 0, 0, kWidth, kHeight,
                                 cudaMemcpyDeviceToHost));
      CHECK(got == given);
    }
    CUDA(cudaFreeArray(after));
    CUDA(cudaSetDevice(from));
    CUDA(cudaFreeArray(before));
    CUDA(cudaDeviceSynchronize());
  }
  return 0;
}
