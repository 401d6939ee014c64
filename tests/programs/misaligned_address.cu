// A vector access at an address that is not a multiple of its size.
#include "program.h"

__global__ void load(const char* bytes, int offset, float4* out) {
  *out = *reinterpret_cast<const float4*>(bytes + offset);
}

int main() {
  DeviceArray<char> bytes(64);
  DeviceArray<float4> out(1);
  bytes.clear();
  load<<<1, 1>>>(bytes.get(), 16, out.get());
  FINISH();
  load<<<1, 1>>>(bytes.get(), 4, out.get());
  EXPECT(cudaErrorMisalignedAddress, cudaDeviceSynchronize());
  EXPECT(cudaErrorMisalignedAddress, cudaDeviceSynchronize());
  std::printf("%s\n", cudaGetErrorName(cudaErrorMisalignedAddress));
}
