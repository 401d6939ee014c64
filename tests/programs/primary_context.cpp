// The primary context is released and retained again: its objects have ended, and it works as
// before.
#include <cstdio>
#include <cstdlib>

#include <cuda.h>

#include "driver_checks.h"

bool active() {
  unsigned flags = 0;
  int state = 0;
  CU(cuDevicePrimaryCtxGetState(0, &flags, &state));
  return state != 0;
}

int main() {
  CU(cuInit(0));
  for (int round = 0; round < 3; ++round) {
    CHECK(!active());
    CUcontext context;
    CU(cuDevicePrimaryCtxRetain(&context, 0));
    CHECK(active());
    CU(cuCtxSetCurrent(context));
    CUdeviceptr memory;
    CUstream stream;
    CU(cuMemAlloc(&memory, 4096));
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CU(cuMemsetD32Async(memory, 40 + round, 1024, stream));
    CU(cuStreamSynchronize(stream));
    unsigned value = 0;
    CU(cuMemcpyDtoH(&value, memory + 4092, sizeof value));
    std::printf("round %d: %u\n", round, value);
    CU(cuCtxSetCurrent(nullptr));
    CU(cuDevicePrimaryCtxRelease(0));
  }
  CHECK(cuDevicePrimaryCtxRelease(0) == CUDA_ERROR_INVALID_CONTEXT);
  std::printf("inactive: %d\n", !active());
}
