// __trap() ends the grid with a sticky error.
#include "program.h"

__global__ void trap_if(int condition) {
  if (condition) __trap();
}

int main() {
  trap_if<<<2, 64>>>(0);
  FINISH();
  trap_if<<<2, 64>>>(1);
  const cudaError_t error = cudaDeviceSynchronize();
  std::printf("%s\n", cudaGetErrorName(error));
  CHECK(error != cudaSuccess);
  EXPECT(error, cudaDeviceSynchronize());
  int value = 0;
  EXPECT(error, cudaMemcpy(&value, &value, sizeof value, cudaMemcpyDefault));
}
