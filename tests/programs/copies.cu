// Copies of every shape and direction: 1D, 2D, 3D, pitched, overlapping pitches, default kind,
// async.
#include <cstring>

#include "program.h"

using Bytes = std::vector<unsigned char>;

Bytes pattern(size_t size, unsigned seed) {
  Random random(seed);
  Bytes bytes(size);
  for (unsigned char& byte : bytes) byte = static_cast<unsigned char>(random.next());
  return bytes;
}

void linear() {
  for (const size_t size : {size_t{1}, size_t{3}, size_t{4097}, size_t{70000}, size_t{9 << 20}}) {
    const Bytes source = pattern(size, static_cast<unsigned>(size));
    DeviceArray<unsigned char> a(size), b(size);
    Bytes back(size), moved(size);
    CUDA(cudaMemcpy(a.get(), source.data(), size, cudaMemcpyHostToDevice));
    CUDA(cudaMemcpy(b.get(), a.get(), size, cudaMemcpyDeviceToDevice));
    CUDA(cudaMemcpy(back.data(), b.get(), size, cudaMemcpyDefault));
    CUDA(cudaMemcpy(moved.data(), back.data(), size, cudaMemcpyHostToHost));
    CHECK(moved == source);
    if (size > 10) {
      CUDA(cudaMemcpy(a.get() + 1, b.get() + 3, size - 5, cudaMemcpyDefault));
      CUDA(cudaMemcpy(back.data(), a.get(), size, cudaMemcpyDeviceToHost));
      CHECK(back[0] == source[0] &&
            std::memcmp(back.data() + 1, source.data() + 3, size - 5) == 0 &&
            back[size - 4] == source[size - 4]);
    }
  }
  // The source of a pageable asynchronous copy may change as soon as the call returns.
  cudaStream_t stream;
  CUDA(cudaStreamCreate(&stream));
  DeviceArray<int> values(1000);
  int local[1000];
  for (int round = 0; round < 20; ++round) {
    for (int i = 0; i < 1000; ++i) local[i] = round * 1000 + i;
    CUDA(cudaMemcpyAsync(values.get(), local, sizeof local, cudaMemcpyHostToDevice, stream));
    std::memset(local, 0xee, sizeof local);
  }
  CUDA(cudaStreamSynchronize(stream));
  CHECK(values.values()[0] == 19000 && values.values()[999] == 19999);
  CUDA(cudaStreamDestroy(stream));
  CUDA(cudaMemcpy(nullptr, nullptr, 0, cudaMemcpyDefault));
}

void two_dimensional() {
  const size_t width = 37, height = 11, host_pitch = 50;
  unsigned char* device;
  size_t pitch;
  CUDA(cudaMallocPitch(&device, &pitch, width, height));
  CHECK(pitch >= width && pitch % 32 == 0);
  const Bytes source = pattern(host_pitch * height, 5);
  CUDA(cudaMemset2D(device, pitch, 0, width, height));
  CUDA(cudaMemcpy2D(device, pitch, source.data(), host_pitch, width, height,
                    cudaMemcpyHostToDevice));
  Bytes back(host_pitch * height, 0xaa);
  CUDA(cudaMemcpy2D(back.data(), host_pitch, device, pitch, width, height, cudaMemcpyDeviceToHost));
  for (size_t y = 0; y < height; ++y) {
    for (size_t x = 0; x < host_pitch; ++x) {
      CHECK(back[y * host_pitch + x] == (x < width ? source[y * host_pitch + x] : 0xaa));
    }
  }
  // A block to another place in the same memory, device to device.
  CUDA(cudaMemcpy2D(device + 6 * pitch + 20, pitch, device + 1 * pitch + 2, pitch, 10, 4,
                    cudaMemcpyDeviceToDevice));
  CUDA(cudaMemcpy2D(back.data(), width, device, pitch, width, height, cudaMemcpyDefault));
  back.resize(width * height);
  for (size_t y = 0; y < 4; ++y) {
    CHECK(std::memcmp(&back[(6 + y) * width + 20], &source[(1 + y) * host_pitch + 2], 10) == 0);
  }
  print_digest("2D", back);
  EXPECT(cudaErrorInvalidPitchValue, cudaMemcpy2D(device, pitch, source.data(), width - 1, width,
                                                  height, cudaMemcpyHostToDevice));
  cudaGetLastError();
  CUDA(cudaFree(device));
}

void three_dimensional() {
  const size_t width = 20, height = 7, depth = 5;
  cudaPitchedPtr device;
  CUDA(cudaMalloc3D(&device, make_cudaExtent(width, height, depth)));
  CHECK(device.xsize == width && device.ysize == height && device.pitch >= width);
  Bytes source = pattern(width * height * depth, 6);
  CUDA(cudaMemset3D(device, 0x11, make_cudaExtent(width, height, depth)));
  cudaMemcpy3DParms copy = {};
  copy.srcPtr = make_cudaPitchedPtr(source.data(), width, width, height);
  copy.srcPos = make_cudaPos(2, 1, 1);
  copy.dstPtr = device;
  copy.dstPos = make_cudaPos(4, 2, 0);
  copy.extent = make_cudaExtent(9, 3, 4);
  copy.kind = cudaMemcpyHostToDevice;
  CUDA(cudaMemcpy3D(&copy));
  Bytes back(width * height * depth);
  cudaMemcpy3DParms whole = {};
  whole.srcPtr = device;
  whole.dstPtr = make_cudaPitchedPtr(back.data(), width, width, height);
  whole.extent = make_cudaExtent(width, height, depth);
  whole.kind = cudaMemcpyDeviceToHost;
  CUDA(cudaMemcpy3DAsync(&whole, nullptr));
  CUDA(cudaStreamSynchronize(nullptr));
  for (size_t z = 0; z < depth; ++z) {
    for (size_t y = 0; y < height; ++y) {
      for (size_t x = 0; x < width; ++x) {
        const bool inside = x >= 4 && x < 13 && y >= 2 && y < 5 && z < 4;
        const unsigned char want =
            inside ? source[((z + 1) * height + y - 1) * width + x - 2] : 0x11;
        CHECK(back[(z * height + y) * width + x] == want);
      }
    }
  }
  print_digest("3D", back);
  CUDA(cudaFree(device.ptr));
}

void refusals() {
  DeviceArray<int> values(10);
  int host[10];
  EXPECT(cudaErrorInvalidValue, cudaMemcpy(values.get(), host, 1 << 30, cudaMemcpyHostToDevice));
  EXPECT(cudaErrorInvalidMemcpyDirection,
         cudaMemcpy(values.get(), host, 4, static_cast<cudaMemcpyKind>(9)));
  cudaGetLastError();
}

int main() {
  linear();
  two_dimensional();
  three_dimensional();
  refusals();
  std::printf("done\n");
}
