// Transposes through padded shared memory with vector loads, for shapes with ragged edges.
#include "program.h"

constexpr int kTile = 32, kRows = 8;

__global__ void transpose(const float* in, float* out, int width, int height) {
  __shared__ float tile[kTile][kTile + 1];
  int x = blockIdx.x * kTile + threadIdx.x;
  int y = blockIdx.y * kTile + threadIdx.y;
  for (int i = 0; i < kTile; i += kRows) {
    if (x < width && y + i < height) tile[threadIdx.y + i][threadIdx.x] = in[(y + i) * width + x];
  }
  __syncthreads();
  x = blockIdx.y * kTile + threadIdx.x;
  y = blockIdx.x * kTile + threadIdx.y;
  for (int i = 0; i < kTile; i += kRows) {
    if (x < height && y + i < width) out[(y + i) * height + x] = tile[threadIdx.x][threadIdx.y + i];
  }
}

__global__ void swap_halves(const float4* in, float4* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = make_float4(in[i].z, in[i].w, in[i].x, in[i].y);
}

int main() {
  for (const dim3 shape : {dim3(64, 32), dim3(100, 37), dim3(5, 200)}) {
    const int width = shape.x, height = shape.y;
    std::vector<float> in(width * height);
    for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<float>(i);
    DeviceArray<float> device_in(in), device_out(in.size());
    const dim3 grid((width + kTile - 1) / kTile, (height + kTile - 1) / kTile);
    transpose<<<grid, dim3(kTile, kRows)>>>(device_in.get(), device_out.get(), width, height);
    FINISH();
    const std::vector<float> out = device_out.values();
    for (int y = 0; y < height; ++y) {
      for (int x = 0; x < width; ++x) CHECK(out[x * height + y] == in[y * width + x]);
    }
    print_digest("transposed", out);
  }
  std::vector<float4> in(333);
  for (int i = 0; i < 333; ++i) in[i] = make_float4(i, -i, 2 * i, 0.5f * i);
  DeviceArray<float4> device_in(in), device_out(in.size());
  swap_halves<<<3, 128>>>(device_in.get(), device_out.get(), 333);
  FINISH();
  print_digest("swapped", device_out.values());
}
