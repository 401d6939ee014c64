// memset in one, two and three dimensions, of bytes, halves and words, aligned or not.
#include <cuda.h>

#include "program.h"

int main() {
  DeviceArray<unsigned char> bytes(1000);
  CUDA(cudaMemset(bytes.get(), 0xab, 1000));
  CUDA(cudaMemset(bytes.get() + 3, 0x5, 501));
  CUDA(cudaMemsetAsync(bytes.get() + 700, 257, 1, nullptr));  // only the low byte counts
  CUDA(cudaStreamSynchronize(nullptr));
  const std::vector<unsigned char> filled = bytes.values();
  for (int i = 0; i < 1000; ++i) {
    CHECK(filled[i] == (i == 700 ? 1 : i >= 3 && i < 504 ? 5 : 0xab));
  }
  print_digest("bytes", filled);

  DeviceArray<unsigned> words(256);
  words.clear();
  const CUdeviceptr base = reinterpret_cast<CUdeviceptr>(words.get());
  CHECK(cuMemsetD32(base + 16, 0xdeadbeef, 100) == CUDA_SUCCESS);
  CHECK(cuMemsetD16(base + 600, 0x1234, 33) == CUDA_SUCCESS);
  CHECK(cuMemsetD8(base + 1001, 0x77, 7) == CUDA_SUCCESS);
  CHECK(cuMemsetD2D32(base + 700, 64, 0x01020304, 3, 4) == CUDA_SUCCESS);
  CHECK(cuMemsetD2D16(base + 20, 64, 0xffff, 2, 5) == CUDA_SUCCESS);
  CHECK(cuMemsetD32Async(base, 42, 1, nullptr) == CUDA_SUCCESS);
  CHECK(cuMemsetD32(base + 2, 1, 1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemsetD16(base + 1, 1, 1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemsetD32(base, 1, 0) == CUDA_SUCCESS);
  print_digest("words", words.values());

  cudaPitchedPtr volume;
  CUDA(cudaMalloc3D(&volume, make_cudaExtent(30, 4, 3)));
  CUDA(cudaMemset(volume.ptr, 0, volume.pitch * 12));
  CUDA(cudaMemset3D(volume, 9, make_cudaExtent(17, 2, 3)));
  std::vector<unsigned char> back(30 * 12);
  CUDA(cudaMemcpy2D(back.data(), 30, volume.ptr, volume.pitch, 30, 12, cudaMemcpyDeviceToHost));
  for (int i = 0; i < 30 * 12; ++i) CHECK(back[i] == (i % 30 < 17 && i / 30 % 4 < 2 ? 9 : 0));
  CUDA(cudaFree(volume.ptr));
  print_digest("volume", back);
  EXPECT(cudaErrorInvalidValue, cudaMemset(bytes.get(), 0, size_t{1} << 40));
}
