// A libcuda.so.1 that was updated under the loaded kernel module, for driver_loader_test.cpp.
#include <cuda.h>

extern "C" {

CUresult cuInit(unsigned) { return CUDA_ERROR_SYSTEM_DRIVER_MISMATCH; }

CUresult cuDeviceGetCount(int*) { return CUDA_ERROR_NOT_INITIALIZED; }

CUresult cuDriverGetVersion(int* driverVersion) {
  *driverVersion = 13000;
  return CUDA_SUCCESS;
}

}  // extern "C"
