// The kernels that interpreter.cpp times, as nvcc translates them to PTX.

// Arithmetic with divergence: the escape-time fractal, one point per thread, `iterations` at most.
extern "C" __global__ void mandelbrot(int* counts, int width, int height, int iterations) {
  const int x = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const int y = static_cast<int>(blockIdx.y * blockDim.y + threadIdx.y);
  if (x >= width || y >= height) return;
  const float cr = static_cast<float>(x) / static_cast<float>(width) * 3.0f - 2.0f;
  const float ci = static_cast<float>(y) / static_cast<float>(height) * 2.0f - 1.0f;
  float zr = 0, zi = 0;
  int n = 0;
  while (n < iterations && zr * zr + zi * zi < 4.0f) {
    const float next = zr * zr - zi * zi + cr;
    zi = 2 * zr * zi + ci;
    zr = next;
    ++n;
  }
  counts[y * width + x] = n;
}

// Loads, shared memory and barriers: c = a * b by tiles, n a multiple of the tile.
extern "C" __global__ void matrix_product(const float* a, const float* b, float* c, int n) {
  constexpr int kTile = 16;
  __shared__ float tile_a[kTile][kTile];
  __shared__ float tile_b[kTile][kTile];
  const int column = static_cast<int>(blockIdx.x) * kTile + static_cast<int>(threadIdx.x);
  const int row = static_cast<int>(blockIdx.y) * kTile + static_cast<int>(threadIdx.y);
  float sum = 0;
  for (int tile = 0; tile < n; tile += kTile) {
    tile_a[threadIdx.y][threadIdx.x] = a[row * n + tile + static_cast<int>(threadIdx.x)];
    tile_b[threadIdx.y][threadIdx.x] = b[(tile + static_cast<int>(threadIdx.y)) * n + column];
    __syncthreads();
    for (int k = 0; k < kTile; ++k) sum += tile_a[threadIdx.y][k] * tile_b[k][threadIdx.x];
    __syncthreads();
  }
  c[row * n + column] = sum;
}
