// A stream waits for a word of host memory. If the worker shares the host's pages, the stream
// continues when the host writes the word. If the worker has its own pages, the stream would wait
// forever, so the call that starts the wait fails.
//
//   host_waits waits|refused
#include <cstdio>
#include <cstring>

#include <cuda.h>

int main(int, char** arguments) {
  const bool refused = std::strcmp(arguments[1], "refused") == 0;
  const CUresult expected = refused ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
  CUdevice device;
  CUcontext context;
  CUstream stream;
  unsigned* word;
  if (cuInit(0) != CUDA_SUCCESS || cuDeviceGet(&device, 0) != CUDA_SUCCESS ||
      cuCtxCreate(&context, nullptr, 0, device) != CUDA_SUCCESS ||
      cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS ||
      cuMemHostAlloc(reinterpret_cast<void**>(&word), 4096, 0) != CUDA_SUCCESS) {
    std::fprintf(stderr, "no device to begin with\n");
    return 1;
  }
  *word = 0;
  const auto address = reinterpret_cast<CUdeviceptr>(word);
  CUstreamBatchMemOpParams batch{};
  batch.waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
  batch.waitValue.address = address;
  batch.waitValue.value = 1;
  CUDA_BATCH_MEM_OP_NODE_PARAMS parameters{};
  parameters.ctx = context;
  parameters.count = 1;
  parameters.paramArray = &batch;
  CUgraph graph;
  CUgraphNode node;
  const CUresult results[] = {
      cuStreamWaitValue32(stream, address, 1, CU_STREAM_WAIT_VALUE_GEQ),
      cuStreamBatchMemOp(stream, 1, &batch, 0),
      cuGraphCreate(&graph, 0) == CUDA_SUCCESS
          ? cuGraphAddBatchMemOpNode(&node, graph, nullptr, 0, &parameters)
          : CUDA_ERROR_UNKNOWN,
  };
  int wrong = 0;
  for (const CUresult result : results) {
    if (result == expected) continue;
    std::fprintf(stderr, "a wait gave CUDA error %d\n", result);
    ++wrong;
  }
  if (!refused && cuStreamQuery(stream) != CUDA_ERROR_NOT_READY) ++wrong;
  *static_cast<volatile unsigned*>(word) = 1;
  if (cuStreamSynchronize(stream) != CUDA_SUCCESS) ++wrong;
  return wrong ? 1 : 0;
}
