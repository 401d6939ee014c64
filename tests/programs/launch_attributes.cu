// Launches with attributes by cudaLaunchKernelEx. Some succeed; others are refused at once and have
// no effect. Not every architecture has clusters.
#include <cooperative_groups.h>

#include "program.h"

__global__ void add(int* total, int more) { atomicAdd(total, more); }
__global__ void together(int* total) {
  cooperative_groups::this_grid().sync();
  atomicAdd(total, 1);
}

int main() {
  DeviceArray<int> total(1);
  total.clear();
  cudaStream_t stream;
  CUDA(cudaStreamCreate(&stream));
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(2);
  config.blockDim = dim3(32);
  config.stream = stream;
  cudaLaunchAttribute attribute = {};
  config.attrs = &attribute;
  config.numAttrs = 1;

  // Each launch twice, because the client may send the second one without a query.
  for (int round = 0; round < 2; ++round) {
    attribute.id = cudaLaunchAttributeCooperative;
    attribute.val = {};
    attribute.val.cooperative = 1;
    CUDA(cudaLaunchKernelEx(&config, together, total.get()));
    attribute.id = cudaLaunchAttributePriority;
    attribute.val = {};
    attribute.val.priority = -1;
    CUDA(cudaLaunchKernelEx(&config, add, total.get(), 1));
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val = {};
    attribute.val.programmaticStreamSerializationAllowed = 1;
    CUDA(cudaLaunchKernelEx(&config, add, total.get(), 1));
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val = {};
    attribute.val.clusterDim = {1, 1, 1};
    CUDA(cudaLaunchKernelEx(&config, add, total.get(), 1));
    // A grid that is not made of whole clusters.
    attribute.val.clusterDim = {3, 1, 1};
    EXPECT(cudaErrorInvalidClusterSize, cudaLaunchKernelEx(&config, add, total.get(), 1));
    EXPECT(cudaErrorInvalidClusterSize, cudaGetLastError());
    attribute.id = cudaLaunchAttributeCooperative;
    attribute.val = {};
    attribute.val.cooperative = 1;
    config.gridDim = dim3(1000000);
    EXPECT(cudaErrorCooperativeLaunchTooLarge, cudaLaunchKernelEx(&config, together, total.get()));
    cudaGetLastError();
    config.gridDim = dim3(2);
  }
  cudaEvent_t done;
  CUDA(cudaEventCreateWithFlags(&done, cudaEventDisableTiming));
  attribute.id = cudaLaunchAttributeLaunchCompletionEvent;
  attribute.val = {};
  attribute.val.launchCompletionEvent.event = done;
  CUDA(cudaLaunchKernelEx(&config, add, total.get(), 1));
  CUDA(cudaEventSynchronize(done));
  CUDA(cudaStreamSynchronize(stream));
  CUDA(cudaGetLastError());
  std::printf("total %d\n", total.values()[0]);

  // An external record is valid in a capture only.
  EXPECT(cudaErrorIllegalState, cudaEventRecordWithFlags(done, stream, cudaEventRecordExternal));
  cudaGetLastError();
  CUDA(cudaStreamSynchronize(stream));
  std::printf("refused at once\n");
}
