// The primary context given back and taken again: what was in it is gone, and it works as before.
#include <cstdio>
#include <cstdlib>

#include <cuda.h>

#define CHECK(condition)                                                                 \
  do {                                                                                   \
    if (!(condition)) {                                                                  \
      std::fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition); \
      std::exit(1);                                                                      \
    }                                                                                    \
  } while (0)
#define DRIVER(call) CHECK((call) == CUDA_SUCCESS)

bool active() {
  unsigned flags = 0;
  int state = 0;
  DRIVER(cuDevicePrimaryCtxGetState(0, &flags, &state));
  return state != 0;
}

int main() {
  DRIVER(cuInit(0));
  for (int round = 0; round < 3; ++round) {
    CHECK(!active());
    CUcontext context;
    DRIVER(cuDevicePrimaryCtxRetain(&context, 0));
    CHECK(active());
    DRIVER(cuCtxSetCurrent(context));
    CUdeviceptr memory;
    CUstream stream;
    DRIVER(cuMemAlloc(&memory, 4096));
    DRIVER(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    DRIVER(cuMemsetD32Async(memory, 40 + round, 1024, stream));
    DRIVER(cuStreamSynchronize(stream));
    unsigned value = 0;
    DRIVER(cuMemcpyDtoH(&value, memory + 4092, sizeof value));
    std::printf("round %d: %u\n", round, value);
    DRIVER(cuCtxSetCurrent(nullptr));
    DRIVER(cuDevicePrimaryCtxRelease(0));
  }
  CHECK(cuDevicePrimaryCtxRelease(0) == CUDA_ERROR_INVALID_CONTEXT);
  std::printf("inactive: %d\n", !active());
}
