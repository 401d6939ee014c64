// __constant__, __device__ and __managed__ variables: initialisers, copies by symbol, addresses,
// sizes.
#include "program.h"

struct Settings {
  int offset;
  double factor;
  const int* table;
};

__device__ int primes[8] = {2, 3, 5, 7, 11, 13};
__constant__ float weights[4] = {1.0f, 0.5f};
__constant__ Settings settings = {10, 0.25, primes};
__device__ unsigned long long counter = 1ull << 40;
__device__ const char* message = "text on the device";
__managed__ int shared_value = 17;
__managed__ int shared_array[4] = {1, 2, 3, 4};
static __device__ double uninitialised[3];

__global__ void read(double* out) {
  const int i = threadIdx.x;
  out[i] = primes[i] * weights[i & 3] + settings.offset + settings.factor * settings.table[7 - i] +
           message[i] + shared_value + shared_array[i & 3] + uninitialised[i % 3];
  atomicAdd(&counter, 1ull);
  primes[i] += 100;
  if (i == 0) shared_value *= 2;
}

int main() {
  DeviceArray<double> out(8);
  read<<<1, 8>>>(out.get());
  FINISH();
  for (const double x : out.values()) std::printf("%g ", x);
  std::printf("\n");

  unsigned long long count = 0;
  CUDA(cudaMemcpyFromSymbol(&count, counter, sizeof count));
  CHECK(count == (1ull << 40) + 8);
  CHECK(shared_value == 34);
  shared_value = 5;
  shared_array[2] = -3;

  const float new_weights[2] = {4.0f, 8.0f};
  CUDA(cudaMemcpyToSymbol(weights, new_weights, sizeof new_weights, 2 * sizeof(float)));
  const int patch = 50;
  CUDA(cudaMemcpyToSymbolAsync(primes, &patch, sizeof patch, 3 * sizeof(int),
                               cudaMemcpyHostToDevice, 0));
  int read_back[8];
  CUDA(cudaMemcpyFromSymbol(read_back, primes, sizeof read_back));
  CHECK(read_back[0] == 102 && read_back[3] == 50 && read_back[7] == 100);

  size_t size = 0;
  CUDA(cudaGetSymbolSize(&size, settings));
  CHECK(size == sizeof(Settings));
  CUDA(cudaGetSymbolSize(&size, uninitialised));
  CHECK(size == 24);
  void* address = nullptr;
  CUDA(cudaGetSymbolAddress(&address, uninitialised));
  const double values[3] = {0.5, 1.5, 2.5};
  CUDA(cudaMemcpy(address, values, sizeof values, cudaMemcpyHostToDevice));
  CUDA(cudaGetSymbolAddress(&address, weights));
  float read_weights[4];
  CUDA(cudaMemcpy(read_weights, address, sizeof read_weights, cudaMemcpyDeviceToHost));
  CHECK(read_weights[1] == 0.5f && read_weights[3] == 8.0f);
  EXPECT(cudaErrorInvalidValue,
         cudaMemcpyToSymbol(weights, new_weights, sizeof new_weights, 3 * sizeof(float)));
  cudaGetLastError();

  read<<<1, 8>>>(out.get());
  FINISH();
  for (const double x : out.values()) std::printf("%g ", x);
  std::printf("\n");
}
