// Copies between two servers in streams of contexts that are destroyed afterwards, and copies after
// a failed copy.
#include <cuda.h>

#include "program.h"

namespace {

constexpr size_t kBytes = 1u << 20;

__global__ void fill(char* memory, char value) { memory[threadIdx.x] = value; }

void take_a_while(void*) {
  const timespec while_busy{0, 50'000'000};
  nanosleep(&while_busy, nullptr);
}

// A new context often gets the handle of the previous one.
void contexts_in_turn(CUcontext other, CUdeviceptr target) {
  for (int round = 0; round < 6; ++round) {
    CUcontext context;
    CUdeviceptr source;
    CUstream stream, waiting;
    CUevent event;
    CHECK(cuCtxCreate(&context, nullptr, 0, 0) == CUDA_SUCCESS);
    CHECK(cuMemAlloc(&source, kBytes) == CUDA_SUCCESS);
    CHECK(cuMemsetD8(source, static_cast<unsigned char>(round), kBytes) == CUDA_SUCCESS);
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    CHECK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS);
    CHECK(cuLaunchHostFunc(stream, take_a_while, nullptr) == CUDA_SUCCESS);
    CHECK(cuMemcpyPeerAsync(target, other, source, context, kBytes, stream) == CUDA_SUCCESS);
    CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    // Destroying the context waits for its last work. Another server waits for it too.
    CHECK(cuLaunchHostFunc(stream, take_a_while, nullptr) == CUDA_SUCCESS);
    CHECK(cuEventRecord(event, stream) == CUDA_SUCCESS);
    CHECK(cuCtxSetCurrent(other) == CUDA_SUCCESS);
    CHECK(cuStreamCreate(&waiting, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    CHECK(cuStreamWaitEvent(waiting, event, 0) == CUDA_SUCCESS);
    CHECK(cuCtxDestroy(context) == CUDA_SUCCESS);
    CHECK(cuCtxSetCurrent(other) == CUDA_SUCCESS);
    CHECK(cuStreamSynchronize(waiting) == CUDA_SUCCESS);
    CHECK(cuStreamDestroy(waiting) == CUDA_SUCCESS);
    unsigned char copied = 255;
    CHECK(cuMemcpyDtoH(&copied, target + kBytes - 1, 1) == CUDA_SUCCESS);
    CHECK(copied == round);
  }
}

void wait_for_both_workers() {
  const timespec ample{0, 300'000'000};
  nanosleep(&ample, nullptr);
}

// The number of errors that the next calls of both devices return.
int later_errors() {
  int errors = 0;
  for (int call = 0; call < 4; ++call) {
    CUDA(cudaSetDevice(call % 2));
    errors += cudaDeviceSynchronize() != cudaSuccess;
  }
  CUDA(cudaSetDevice(0));
  (void)cudaGetLastError();
  return errors;
}

// A copy fails because only half of its source is mapped, which only the source's worker can
// detect. Later work is still ordered after the kernel. Both workers have the error, but it is
// reported only once.
void behind_a_failed_copy(char* target) {
  char* source;
  cudaStream_t stream;
  CUDA(cudaSetDevice(0));
  CUDA(cudaMalloc(&source, kBytes));
  CUDA(cudaMemset(source, 1, kBytes));
  CUDA(cudaStreamCreate(&stream));
  fill<<<1, 64, 0, stream>>>(source, 1);
  CUDA(cudaDeviceSynchronize());
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  size_t part = 0;
  CUdeviceptr range;
  CUmemGenericAllocationHandle handle;
  CHECK(cuMemGetAllocationGranularity(&part, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM) ==
        CUDA_SUCCESS);
  CHECK(cuMemAddressReserve(&range, 2 * part, 0, 0, 0) == CUDA_SUCCESS);
  CHECK(cuMemCreate(&handle, part, &properties, 0) == CUDA_SUCCESS);
  CHECK(cuMemMap(range, part, 0, handle, 0) == CUDA_SUCCESS);
  const CUmemAccessDesc access{properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CHECK(cuMemSetAccess(range, part, &access, 1) == CUDA_SUCCESS);

  CUDA(cudaLaunchHostFunc(stream, take_a_while, nullptr));
  CUDA(cudaMemcpyPeerAsync(target, 1, source, 0, 64, stream));
  fill<<<1, 64, 0, stream>>>(source, 2);
  // One of these calls returns the error: the first one that returns after the worker detects it.
  const cudaError_t failing =
      cudaMemcpyPeerAsync(target, 1, reinterpret_cast<void*>(range), 0, 2 * part, stream);
  const cudaError_t behind = cudaMemcpyPeerAsync(target, 1, source, 0, 64, stream);
  const cudaError_t synchronised = cudaStreamSynchronize(stream);
  CHECK((failing != cudaSuccess) + (behind != cudaSuccess) + (synchronised != cudaSuccess) == 1);
  (void)cudaGetLastError();
  char copied = 0;
  CUDA(cudaMemcpy(&copied, target, 1, cudaMemcpyDeviceToHost));
  CHECK(copied == 2);

  const auto* half_mapped = reinterpret_cast<void*>(range);
  const cudaError_t issued = cudaMemcpyPeerAsync(target, 1, half_mapped, 0, 2 * part, stream);
  wait_for_both_workers();
  CHECK(later_errors() + (issued != cudaSuccess) == 1);
  CHECK(cudaMemcpyPeer(target, 1, half_mapped, 0, 2 * part) == cudaErrorInvalidValue);
  wait_for_both_workers();
  CHECK(later_errors() == 0);
}

}  // namespace

int main() {
  CUDA(cudaSetDevice(0));
  CUDA(cudaFree(nullptr));
  CUDA(cudaSetDevice(1));
  char* target;
  CUDA(cudaMalloc(&target, 64u << 20));
  CUcontext other;
  CHECK(cuCtxGetCurrent(&other) == CUDA_SUCCESS);
  contexts_in_turn(other, reinterpret_cast<CUdeviceptr>(target));
  behind_a_failed_copy(target);
  std::printf("contexts: as they should be\n");
  return 0;
}
