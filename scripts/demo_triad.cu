// The demonstration's program: a triad on every device, checked on the host. Plain CUDA.
#include <cstdio>
#include <vector>

__global__ void triad(const float* a, const float* b, float scale, float* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = a[i] + scale * b[i];
}

#define CHECK(call)                                              \
  do {                                                           \
    const cudaError_t error = (call);                            \
    if (error != cudaSuccess) {                                  \
      std::printf("%s: %s\n", #call, cudaGetErrorString(error)); \
      return 1;                                                  \
    }                                                            \
  } while (0)

int main() {
  int devices = 0;
  CHECK(cudaGetDeviceCount(&devices));
  const int n = 1 << 20;
  std::vector<float> a(n), b(n), out(n);
  for (int i = 0; i < n; ++i) {
    a[i] = static_cast<float>(i % 1000);
    b[i] = static_cast<float>(i % 77);
  }
  for (int device = 0; device < devices; ++device) {
    CHECK(cudaSetDevice(device));
    cudaDeviceProp properties;
    CHECK(cudaGetDeviceProperties(&properties, device));
    float *da, *db, *dout;
    CHECK(cudaMalloc(&da, n * sizeof(float)));
    CHECK(cudaMalloc(&db, n * sizeof(float)));
    CHECK(cudaMalloc(&dout, n * sizeof(float)));
    CHECK(cudaMemcpy(da, a.data(), n * sizeof(float), cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(db, b.data(), n * sizeof(float), cudaMemcpyHostToDevice));
    triad<<<(n + 255) / 256, 256>>>(da, db, 2.0f + device, dout, n);
    CHECK(cudaMemcpy(out.data(), dout, n * sizeof(float), cudaMemcpyDeviceToHost));
    int wrong = 0;
    for (int i = 0; i < n; ++i) wrong += out[i] != a[i] + (2.0f + device) * b[i];
    std::printf("device %d, %s: %d elements, %d wrong\n", device, properties.name, n, wrong);
    CHECK(cudaFree(da));
    CHECK(cudaFree(db));
    CHECK(cudaFree(dout));
    if (wrong) return 1;
  }
  return 0;
}
