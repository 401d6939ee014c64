// The kind of a pointer: device, page-locked, managed or unknown; ranges and attributes by the
// driver.
#include <atomic>
#include <chrono>
#include <thread>

#include <cuda.h>

#include "program.h"

__device__ int variable[10];

void expect_type(const void* pointer, cudaMemoryType type, const char* name) {
  cudaPointerAttributes attributes;
  CUDA(cudaPointerGetAttributes(&attributes, pointer));
  CHECK(attributes.type == type);
  if (type == cudaMemoryTypeUnregistered) {
    CHECK(attributes.devicePointer == nullptr);
  } else {
    CHECK(attributes.device == 0);
    CHECK((attributes.devicePointer == pointer) &&
          ((type == cudaMemoryTypeDevice) == (attributes.hostPointer == nullptr)));
  }
  std::printf("%s: type %d\n", name, attributes.type);
}

// Whether the host waits for the stream's earlier work in a call.
template <typename Call>
bool waits_in(const Call& call) {
  std::atomic<bool> done{false};
  const auto end_late = [](void* flag) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    *static_cast<std::atomic<bool>*>(flag) = true;
  };
  CUDA(cudaLaunchHostFunc(nullptr, end_late, &done));
  CHECK(call() == CUDA_SUCCESS);
  const bool was_done = done;
  CUDA(cudaDeviceSynchronize());
  return was_done;
}

int main() {
  DeviceArray<int> array(1000);
  int *pinned, *managed, local = 0;
  CUDA(cudaMallocHost(&pinned, 4096));
  CUDA(cudaMallocManaged(&managed, 4096));
  void* symbol;
  CUDA(cudaGetSymbolAddress(&symbol, variable));
  expect_type(array.get(), cudaMemoryTypeDevice, "device");
  expect_type(array.get() + 500, cudaMemoryTypeDevice, "inside");
  expect_type(pinned + 3, cudaMemoryTypeHost, "pinned");
  expect_type(managed, cudaMemoryTypeManaged, "managed");
  expect_type(symbol, cudaMemoryTypeDevice, "variable");
  expect_type(&local, cudaMemoryTypeUnregistered, "stack");

  const CUdeviceptr inside = reinterpret_cast<CUdeviceptr>(array.get() + 7);
  CUdeviceptr base;
  size_t size;
  CHECK(cuMemGetAddressRange(&base, &size, inside) == CUDA_SUCCESS);
  CHECK(base == reinterpret_cast<CUdeviceptr>(array.get()) && size == 4000);
  CHECK(cuMemGetAddressRange(&base, &size, reinterpret_cast<CUdeviceptr>(&local)) ==
        CUDA_ERROR_NOT_FOUND);

  unsigned type = 0;
  int managed_flag = -1, ordinal = -1;
  unsigned long long first_id = 0, second_id = 0;
  CHECK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, inside) == CUDA_SUCCESS);
  CHECK(type == CU_MEMORYTYPE_DEVICE);
  CHECK(cuPointerGetAttribute(&managed_flag, CU_POINTER_ATTRIBUTE_IS_MANAGED,
                              reinterpret_cast<CUdeviceptr>(managed)) == CUDA_SUCCESS);
  CHECK(managed_flag != 0);
  CHECK(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, inside) ==
        CUDA_SUCCESS);
  CHECK(ordinal == 0);
  DeviceArray<int> other(10);
  CHECK(cuPointerGetAttribute(&first_id, CU_POINTER_ATTRIBUTE_BUFFER_ID, inside) == CUDA_SUCCESS);
  CHECK(cuPointerGetAttribute(&second_id, CU_POINTER_ATTRIBUTE_BUFFER_ID,
                              reinterpret_cast<CUdeviceptr>(other.get())) == CUDA_SUCCESS);
  CHECK(first_id != second_id);
  CUdeviceptr start;
  size_t range;
  CUpointer_attribute wanted[] = {CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                                  CU_POINTER_ATTRIBUTE_RANGE_SIZE,
                                  CU_POINTER_ATTRIBUTE_MEMORY_TYPE};
  void* results[] = {&start, &range, &type};
  CHECK(cuPointerGetAttributes(3, wanted, results, inside) == CUDA_SUCCESS);
  CHECK(start == reinterpret_cast<CUdeviceptr>(array.get()) && range == 4000);
  CHECK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                              reinterpret_cast<CUdeviceptr>(&local)) == CUDA_ERROR_INVALID_VALUE);

  unsigned synchronous = 2;
  const unsigned on = 1;
  const auto is_synchronous = [&] {
    CHECK(cuPointerGetAttribute(&synchronous, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, inside) ==
          CUDA_SUCCESS);
    return synchronous != 0;
  };
  CHECK(!is_synchronous());
  CHECK(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, inside) == CUDA_SUCCESS);
  CHECK(is_synchronous());
  const auto beside = reinterpret_cast<CUdeviceptr>(other.get());
  CHECK(waits_in([&] { return cuMemcpyDtoD(inside, beside, 40); }));
  CHECK(waits_in([&] { return cuMemcpyDtoD(beside, inside, 40); }));
  CHECK(waits_in([&] { return cuMemsetD8(inside, 1, 40); }));

  CUDA(cudaFreeHost(pinned));
  CUDA(cudaFree(managed));
  expect_type(pinned, cudaMemoryTypeUnregistered, "freed");
}
