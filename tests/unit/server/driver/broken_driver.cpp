// For driver_loader_test.cpp: a libcuda.so.1 whose version differs from the loaded kernel module's.
#include <cuda.h>

extern "C" {

CUresult cuInit(unsigned) { return CUDA_ERROR_SYSTEM_DRIVER_MISMATCH; }

CUresult cuDeviceGetCount(int*) { return CUDA_ERROR_NOT_INITIALIZED; }

CUresult cuDriverGetVersion(int* driverVersion) {
  *driverVersion = 13000;
  return CUDA_SUCCESS;
}

}  // extern "C"
