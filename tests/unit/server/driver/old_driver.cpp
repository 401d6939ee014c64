// A libcuda.so.1 of CUDA 12.2 for driver_loader_test.cpp.
#include <cuda.h>

extern "C" {

CUresult cuInit(unsigned) { return CUDA_SUCCESS; }

CUresult cuDeviceGetCount(int* count) {
  *count = 1;
  return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int* driverVersion) {
  *driverVersion = 12020;
  return CUDA_SUCCESS;
}

}  // extern "C"
