// Iteration counts of the Mandelbrot set: divergent loops. Explicit roundings keep them the same
// whether or not the compiler fuses multiplications with additions.
#include "program.h"

__host__ __device__ inline int iterations(float cx, float cy, int limit) {
  float x = 0, y = 0;
  int i = 0;
  for (; i < limit; ++i) {
#ifdef __CUDA_ARCH__
    const float xx = __fmul_rn(x, x), yy = __fmul_rn(y, y);
    if (__fadd_rn(xx, yy) > 4) break;
    y = __fadd_rn(__fmul_rn(__fmul_rn(2, x), y), cy);
    x = __fadd_rn(__fsub_rn(xx, yy), cx);
#else
    volatile float xx = x * x, yy = y * y, xy = 2 * x * y, difference = xx - yy;
    if (xx + yy > 4) break;
    y = xy + cy;
    x = difference + cx;
#endif
  }
  return i;
}

__global__ void mandelbrot(unsigned short* image, int width, int height, int limit) {
  const int px = blockIdx.x * blockDim.x + threadIdx.x, py = blockIdx.y * blockDim.y + threadIdx.y;
  if (px >= width || py >= height) return;
  image[py * width + px] = iterations(-2.0f + px * 0.0234375f, -1.5f + py * 0.0234375f, limit);
}

int main() {
  const int width = 128, height = 128, limit = 200;
  DeviceArray<unsigned short> image(width * height);
  mandelbrot<<<dim3(8, 16), dim3(16, 8)>>>(image.get(), width, height, limit);
  FINISH();
  const std::vector<unsigned short> counts = image.values();
  long total = 0;
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      CHECK(counts[y * width + x] ==
            iterations(-2.0f + x * 0.0234375f, -1.5f + y * 0.0234375f, limit));
      total += counts[y * width + x];
    }
  }
  std::printf("iterations %ld\n", total);
  print_digest("image", counts);
}
