// cuRAND's device generators: states in memory, skipping ahead, uniform numbers.
#include <curand_kernel.h>

#include "program.h"

template <typename State>
__global__ void generate(unsigned* out, float* floats, int rounds) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  State state;
  curand_init(1234, i, i % 3, &state);
  unsigned hash = 0;
  float sum = 0;
  for (int round = 0; round < rounds; ++round) {
    hash = hash * 31 + curand(&state);
    sum = __fadd_rn(sum, curand_uniform(&state));
  }
  skipahead(1000, &state);
  out[i] = hash ^ curand(&state);
  floats[i] = sum;
}

template <typename State>
void run(const char* name) {
  DeviceArray<unsigned> out(128);
  DeviceArray<float> floats(128);
  generate<State><<<2, 64>>>(out.get(), floats.get(), 20);
  FINISH();
  std::printf("%s: %016llx %016llx\n", name, static_cast<unsigned long long>(digest(out.values())),
              static_cast<unsigned long long>(digest(floats.values())));
}

int main() {
  run<curandStatePhilox4_32_10_t>("philox");
  run<curandStateXORWOW_t>("xorwow");
}
