// Queries about devices must agree with each other, on any device.
#include <cstring>
#include <string>

#include "program.h"

int attribute(cudaDeviceAttr which, int device) {
  int value = -1;
  CUDA(cudaDeviceGetAttribute(&value, which, device));
  return value;
}

void limits() {
  size_t before = 0, after = 0;
  CUDA(cudaDeviceGetLimit(&before, cudaLimitStackSize));
  CHECK(before >= 1024);
  CUDA(cudaDeviceSetLimit(cudaLimitStackSize, 8192));
  CUDA(cudaDeviceGetLimit(&after, cudaLimitStackSize));
  CHECK(after >= 8192);
  CUDA(cudaDeviceSetLimit(cudaLimitPrintfFifoSize, 4 << 20));
  CUDA(cudaDeviceGetLimit(&after, cudaLimitPrintfFifoSize));
  CHECK(after >= 4 << 20);
  EXPECT(cudaErrorInvalidValue, cudaDeviceGetLimit(&after, static_cast<cudaLimit>(99)));
  cudaGetLastError();
}

int main() {
  int runtime = 0, driver = 0, devices = 0;
  CUDA(cudaRuntimeGetVersion(&runtime));
  CUDA(cudaDriverGetVersion(&driver));
  CHECK(runtime >= 13000 && driver >= 13000);
  CUDA(cudaGetDeviceCount(&devices));
  std::vector<cudaDeviceProp> all(devices);
  for (int d = 0; d < devices; ++d) {
    cudaDeviceProp& properties = all[d];
    CUDA(cudaGetDeviceProperties(&properties, d));
    CHECK(properties.warpSize == 32 && std::strlen(properties.name) > 0);
    CHECK(properties.major == attribute(cudaDevAttrComputeCapabilityMajor, d));
    CHECK(properties.minor == attribute(cudaDevAttrComputeCapabilityMinor, d));
    CHECK(properties.multiProcessorCount == attribute(cudaDevAttrMultiProcessorCount, d));
    CHECK(properties.maxThreadsPerBlock == attribute(cudaDevAttrMaxThreadsPerBlock, d));
    CHECK(properties.maxThreadsPerBlock == 1024 && properties.maxThreadsDim[2] == 64);
    CHECK(properties.maxGridSize[0] == 0x7fffffff && properties.maxGridSize[1] == 65535);
    CHECK(properties.sharedMemPerBlock == 48 << 10);
    CHECK(static_cast<int>(properties.sharedMemPerBlockOptin) ==
          attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, d));
    CHECK(properties.sharedMemPerBlockOptin >= properties.sharedMemPerBlock);
    CHECK(properties.unifiedAddressing == 1 && properties.managedMemory == 1);
    CHECK(properties.totalGlobalMem > 0 && properties.regsPerBlock > 0 &&
          properties.l2CacheSize > 0);
    CHECK(attribute(cudaDevAttrCanMapHostMemory, d) == 1);
    CHECK(attribute(cudaDevAttrMemoryPoolsSupported, d) == 1);
    for (int other = 0; other < d; ++other) {
      CHECK(std::memcmp(&all[other].uuid, &properties.uuid, sizeof properties.uuid) != 0);
    }
    char bus[32];
    int same = -1;
    CUDA(cudaDeviceGetPCIBusId(bus, sizeof bus, d));
    CUDA(cudaDeviceGetByPCIBusId(&same, bus));
    CHECK(same == d);
    CUDA(cudaSetDevice(d));
    size_t free_bytes, total_bytes;
    CUDA(cudaMemGetInfo(&free_bytes, &total_bytes));
    CHECK(total_bytes == properties.totalGlobalMem && free_bytes <= total_bytes);
  }
  CUDA(cudaSetDevice(0));
  int chosen = -1;
  CUDA(cudaChooseDevice(&chosen, &all[0]));
  CHECK(chosen >= 0 && chosen < devices);
  CUDA(cudaInitDevice(0, 0, 0));
  int unknown = 0;
  EXPECT(cudaErrorInvalidValue,
         cudaDeviceGetAttribute(&unknown, static_cast<cudaDeviceAttr>(9999), 0));
  cudaGetLastError();
  EXPECT(cudaErrorInvalidDevice, cudaDeviceGetAttribute(&unknown, cudaDevAttrWarpSize, 1000));
  cudaGetLastError();
  limits();
  std::printf("consistent\n");
}
