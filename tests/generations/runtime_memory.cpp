// Copies, host memory, arrays, pools, attributes of pointers.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "tests/generations/checks.h"
#include "tests/generations/registration.h"

namespace {

void copies() {
  constexpr size_t kWidth = 200, kHeight = 30;
  std::vector<unsigned char> from(kWidth * kHeight), to(kWidth * kHeight);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<unsigned char>(i * 7);
  void* device = nullptr;
  size_t pitch = 0;
  CUDA(cudaMallocPitch(&device, &pitch, kWidth, kHeight));
  CUDA(cudaMemcpy2D(device, pitch, from.data(), kWidth, kWidth, kHeight, cudaMemcpyHostToDevice));
  CUDA(cudaMemcpy2D(to.data(), kWidth, device, pitch, kWidth, kHeight, cudaMemcpyDeviceToHost));
  CHECK(from == to);
  CUDA(cudaMemset2D(device, pitch, 9, kWidth / 2, kHeight));
  CUDA(cudaMemcpy2D(to.data(), kWidth, device, pitch, kWidth, kHeight, cudaMemcpyDeviceToHost));
  CHECK(to[0] == 9 && to[kWidth / 2] == from[kWidth / 2]);
  CUDA(cudaFree(device));

  const cudaExtent extent{64, 8, 4};
  cudaPitchedPtr volume;
  CUDA(cudaMalloc3D(&volume, extent));
  cudaMemcpy3DParms copy{};
  copy.srcPtr = {from.data(), 64, 64, 8};
  copy.dstPtr = volume;
  copy.extent = extent;
  copy.kind = cudaMemcpyHostToDevice;
  CUDA(cudaMemcpy3D(&copy));
  std::fill(to.begin(), to.end(), 0);
  copy.srcPtr = volume;
  copy.dstPtr = {to.data(), 64, 64, 8};
  copy.kind = cudaMemcpyDeviceToHost;
  CUDA(cudaMemcpy3D(&copy));
  CHECK(std::equal(to.begin(), to.begin() + 64 * 8 * 4, from.begin()));
  CUDA(cudaFree(volume.ptr));

  // Unified addressing: the direction is found from the pointers.
  CUDA(cudaMalloc(&device, from.size()));
  CUDA(cudaMemcpy(device, from.data(), from.size(), cudaMemcpyDefault));
  CUDA(cudaMemcpy(to.data(), device, from.size(), cudaMemcpyDefault));
  CHECK(from == to);
  EXPECT(cudaErrorInvalidValue, cudaMemcpy(nullptr, from.data(), 16, cudaMemcpyHostToDevice));
  CHECK(cudaGetLastError() == cudaErrorInvalidValue);
  CUDA(cudaFree(device));
  std::printf("copies: ok\n");
}

void arrays() {
  cudaChannelFormatDesc format{32, 0, 0, 0, cudaChannelFormatKindFloat};
  cudaArray_t array;
  CUDA(cudaMallocArray(&array, &format, 32, 8, 0));
  std::vector<float> from(32 * 8), to(32 * 8);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<float>(i);
  CUDA(cudaMemcpy2DToArray(array, 0, 0, from.data(), 128, 128, 8, cudaMemcpyHostToDevice));
  CUDA(cudaMemcpy2DFromArray(to.data(), 128, array, 0, 0, 128, 8, cudaMemcpyDeviceToHost));
  CHECK(from == to);
  cudaExtent extent;
  unsigned flags;
  CUDA(cudaArrayGetInfo(&format, &extent, &flags, array));
  CHECK(format.x == 32 && extent.width == 32 && extent.height == 8);
  CUDA(cudaFreeArray(array));
  std::printf("arrays: ok\n");
}

void host_memory() {
  float* pinned;
  CUDA(cudaMallocHost(reinterpret_cast<void**>(&pinned), 4096));
  float* mapped;
  CUDA(cudaHostAlloc(reinterpret_cast<void**>(&mapped), 4096, cudaHostAllocMapped));
  for (int i = 0; i < 1024; ++i) pinned[i] = mapped[i] = static_cast<float>(i);
  void* device = nullptr;
  CUDA(cudaHostGetDevicePointer(&device, mapped, 0));
  const float values[4] = {2, 2, 2, 2};
  CUDA(cudaMemcpyToSymbol(static_cast<const void*>(factors), values, sizeof values, 0,
                          cudaMemcpyHostToDevice));
  CUDA(launch(scale, 4, 256, 0, nullptr, static_cast<float*>(device), 1024));
  CUDA(cudaDeviceSynchronize());
  CHECK(mapped[1023] == 2046);
  cudaPointerAttributes attributes;
  CUDA(cudaPointerGetAttributes(&attributes, pinned));
  CHECK(attributes.type == cudaMemoryTypeHost && attributes.hostPointer == pinned);
  std::vector<char> pageable(64 << 10);
  CUDA(cudaHostRegister(pageable.data(), pageable.size(), cudaHostRegisterDefault));
  CUDA(cudaHostUnregister(pageable.data()));
  EXPECT(cudaErrorHostMemoryNotRegistered, cudaHostUnregister(pageable.data()));
  CHECK(cudaGetLastError() == cudaErrorHostMemoryNotRegistered);
  CUDA(cudaFreeHost(pinned));
  CUDA(cudaFreeHost(mapped));

  float* managed;
  CUDA(cudaMallocManaged(reinterpret_cast<void**>(&managed), 4096, cudaMemAttachGlobal));
  for (int i = 0; i < 1024; ++i) managed[i] = static_cast<float>(i);
  CUDA(launch(scale, 4, 256, 0, nullptr, managed, 1024));
  CUDA(cudaDeviceSynchronize());
  CHECK(managed[7] == 14);
  CUDA(cudaPointerGetAttributes(&attributes, managed));
  CHECK(attributes.type == cudaMemoryTypeManaged);
  CUDA(cudaFree(managed));
  std::printf("host memory: ok\n");
}

void pools() {
  cudaStream_t stream;
  CUDA(cudaStreamCreate(&stream));
  void *first, *second;
  CUDA(cudaMallocAsync(&first, 1 << 20, stream));
  CUDA(cudaMemsetAsync(first, 1, 1 << 20, stream));
  CUDA(cudaFreeAsync(first, stream));
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location = {cudaMemLocationTypeDevice, 0};
  cudaMemPool_t pool, default_pool;
  CUDA(cudaMemPoolCreate(&pool, &properties));
  uint64_t threshold = 1 << 20, read = 0;
  CUDA(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold));
  CUDA(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &read));
  CHECK(read == threshold);
  CUDA(cudaMallocFromPoolAsync(&second, 4096, pool, stream));
  CUDA(cudaFreeAsync(second, stream));
  CUDA(cudaStreamSynchronize(stream));
  CUDA(cudaMemPoolTrimTo(pool, 0));
  CUDA(cudaMemPoolDestroy(pool));
  CUDA(cudaDeviceGetDefaultMemPool(&default_pool, 0));
  CUDA(cudaStreamDestroy(stream));
  size_t free_bytes = 0, total = 0;
  CUDA(cudaMemGetInfo(&free_bytes, &total));
  CHECK(free_bytes > 0 && free_bytes <= total);
  std::printf("pools: ok\n");
}

}  // namespace

void test_memory() {
  copies();
  arrays();
  host_memory();
  pools();
  CUDA(cudaGetLastError());
}
