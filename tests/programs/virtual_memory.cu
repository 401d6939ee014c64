// The driver's virtual memory management: reserve, create, map, share by descriptor, remap,
// release.
#include <cuda.h>
#include <unistd.h>

#include "program.h"

#define DRIVER(call) CHECK((call) == CUDA_SUCCESS)

__global__ void add(int* values, int n, int amount) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) values[i] += amount;
}

int main() {
  CUDA(cudaFree(nullptr));
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = 0;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  size_t unit = 0;
  DRIVER(cuMemGetAllocationGranularity(&unit, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  CHECK(unit != 0 && (unit & (unit - 1)) == 0);

  CUdeviceptr base = 0;
  DRIVER(cuMemAddressReserve(&base, 4 * unit, 0, 0, 0));
  CHECK(base % unit == 0);
  CUmemGenericAllocationHandle pages[2];
  for (auto& page : pages) DRIVER(cuMemCreate(&page, unit, &properties, 0));
  // The second page is mapped before the first; a hole follows them.
  DRIVER(cuMemMap(base + unit, unit, 0, pages[0], 0));
  DRIVER(cuMemMap(base, unit, 0, pages[1], 0));
  CUmemAccessDesc access = {};
  access.location = properties.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  DRIVER(cuMemSetAccess(base, 2 * unit, &access, 1));
  unsigned long long rights = 0;
  DRIVER(cuMemGetAccess(&rights, &access.location, base));
  CHECK(rights == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);

  // One array across both pages.
  const int n = static_cast<int>(2 * unit / sizeof(int));
  int* values = reinterpret_cast<int*>(base);
  DRIVER(cuMemsetD32(base, 100, n));
  add<<<(n + 255) / 256, 256>>>(values, n, 23);
  FINISH();
  int ends[2];
  CUDA(cudaMemcpy(&ends[0], values, sizeof(int), cudaMemcpyDeviceToHost));
  CUDA(cudaMemcpy(&ends[1], values + n - 1, sizeof(int), cudaMemcpyDeviceToHost));
  CHECK(ends[0] == 123 && ends[1] == 123);

  // The same page is mapped at a second address, by a file descriptor.
  int descriptor = -1;
  DRIVER(cuMemExportToShareableHandle(&descriptor, pages[0],
                                      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  CHECK(descriptor >= 0);
  CUmemGenericAllocationHandle imported;
  DRIVER(cuMemImportFromShareableHandle(&imported,
                                        reinterpret_cast<void*>(static_cast<intptr_t>(descriptor)),
                                        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  close(descriptor);
  DRIVER(cuMemMap(base + 3 * unit, unit, 0, imported, 0));
  DRIVER(cuMemSetAccess(base + 3 * unit, unit, &access, 1));
  add<<<1, 32>>>(reinterpret_cast<int*>(base + 3 * unit), 32, 1000);
  FINISH();
  int seen = 0;
  CUDA(cudaMemcpy(&seen, reinterpret_cast<int*>(base + unit), sizeof(int), cudaMemcpyDeviceToHost));
  CHECK(seen == 1123);
  CUmemGenericAllocationHandle retained;
  DRIVER(cuMemRetainAllocationHandle(&retained, reinterpret_cast<void*>(base + 3 * unit)));
  CHECK(retained == imported);
  DRIVER(cuMemRelease(retained));
  CUmemAllocationProp read_back;
  DRIVER(cuMemGetAllocationPropertiesFromHandle(&read_back, pages[0]));
  CHECK(read_back.location.id == 0 && read_back.type == CU_MEM_ALLOCATION_TYPE_PINNED);

  // Memory with a released handle exists while it is mapped. An unmapped page keeps its content for
  // the next mapping.
  DRIVER(cuMemUnmap(base, unit));
  DRIVER(cuMemMap(base + 2 * unit, unit, 0, pages[1], 0));
  DRIVER(cuMemSetAccess(base + 2 * unit, unit, &access, 1));
  CUDA(cudaMemcpy(&seen, reinterpret_cast<int*>(base + 2 * unit), sizeof(int),
                  cudaMemcpyDeviceToHost));
  CHECK(seen == 123);
  for (auto page : pages) DRIVER(cuMemRelease(page));
  DRIVER(cuMemRelease(imported));
  CUDA(cudaMemcpy(&seen, reinterpret_cast<int*>(base + unit), sizeof(int), cudaMemcpyDeviceToHost));
  CHECK(seen == 1123);

  CHECK(cuMemMap(base + unit, unit, 0, pages[0], 0) != CUDA_SUCCESS);
  CHECK(cuMemCreate(&pages[0], unit + 1, &properties, 0) == CUDA_ERROR_INVALID_VALUE);
  DRIVER(cuMemUnmap(base + unit, 3 * unit));
  DRIVER(cuMemAddressFree(base, 4 * unit));

  // An address hint may be ignored, but the reservation keeps its alignment.
  int devices = 0;
  CUDA(cudaGetDeviceCount(&devices));
  for (int device = 0; device < devices; ++device) {
    CUDA(cudaSetDevice(device));
    for (CUdeviceptr hint = 0x600000000000; hint < 0x700000000000; hint += 0x10000000000) {
      DRIVER(cuMemAddressReserve(&base, unit, 4 * unit, hint, 0));
      CHECK(base % (4 * unit) == 0);
      DRIVER(cuMemAddressFree(base, unit));
    }
  }
  std::printf("values %d %d\n", ends[1], seen);
}
