// Streams, events, host functions, and graphs, whose calls changed most between generations.

#include <vector>

#include "tests/generations/checks.h"
#include "tests/generations/registration.h"

namespace {

void add_one(void* number) { ++*static_cast<int*>(number); }

void CUDART_CB add_ten(cudaStream_t, cudaError_t status, void* number) {
  if (status == cudaSuccess) *static_cast<int*>(number) += 10;
}

int read_counter() {
  int count = 0;
  CUDA(cudaMemcpyFromSymbol(&count, static_cast<const void*>(&counter), sizeof count, 0,
                            cudaMemcpyDeviceToHost));
  return count;
}

void clear_counter() {
  const int zero = 0;
  CUDA(cudaMemcpyToSymbol(static_cast<const void*>(&counter), &zero, sizeof zero, 0,
                          cudaMemcpyHostToDevice));
  CUDA(cudaStreamSynchronize(nullptr));  // non-blocking streams do not wait for it
}

cudaGraphExec_t instantiate(cudaGraph_t graph) {
  cudaGraphExec_t executable;
#if CUDART_VERSION >= 12000
  CUDA(cudaGraphInstantiate(&executable, graph, 0));
#else
  CUDA(cudaGraphInstantiate(&executable, graph, nullptr, nullptr, 0));
#endif
  return executable;
}

void update(cudaGraphExec_t executable, cudaGraph_t graph) {
#if CUDART_VERSION >= 12000
  cudaGraphExecUpdateResultInfo info;
  CUDA(cudaGraphExecUpdate(executable, graph, &info));
  CHECK(info.result == cudaGraphExecUpdateSuccess);
#else
  cudaGraphNode_t node;
  cudaGraphExecUpdateResult result;
  CUDA(cudaGraphExecUpdate(executable, graph, &node, &result));
  CHECK(result == cudaGraphExecUpdateSuccess);
#endif
}

cudaStreamCaptureStatus capture_status(cudaStream_t stream) {
  cudaStreamCaptureStatus status;
  unsigned long long id = 0;
#if CUDART_VERSION >= 13000
  CUDA(cudaStreamGetCaptureInfo(stream, &status, &id, nullptr, nullptr, nullptr, nullptr));
#else
  CUDA(cudaStreamGetCaptureInfo_v2(stream, &status, &id, nullptr, nullptr, nullptr));
#endif
  return status;
}

void captured() {
  cudaStream_t stream, side;
  CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CUDA(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
  cudaEvent_t fork, join;
  CUDA(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
  CUDA(cudaEventCreateWithFlags(&join, cudaEventDisableTiming));
  int host_calls = 0;
  clear_counter();
  CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  CHECK(capture_status(stream) == cudaStreamCaptureStatusActive);
  CUDA(launch(count_threads, 1, 32, 0, stream));
  CUDA(cudaEventRecord(fork, stream));
  CUDA(cudaStreamWaitEvent(side, fork, 0));
  CUDA(launch(count_threads, 1, 64, 0, side));
  CUDA(cudaEventRecord(join, side));
  CUDA(cudaStreamWaitEvent(stream, join, 0));
  CUDA(cudaLaunchHostFunc(stream, add_one, &host_calls));
  cudaGraph_t graph;
  CUDA(cudaStreamEndCapture(stream, &graph));
  CHECK(capture_status(stream) == cudaStreamCaptureStatusNone);
  size_t nodes = 0;
  CUDA(cudaGraphGetNodes(graph, nullptr, &nodes));
  cudaGraphExec_t executable = instantiate(graph);
  for (int i = 0; i < 5; ++i) CUDA(cudaGraphLaunch(executable, stream));
  CUDA(cudaStreamSynchronize(stream));
  std::printf("captured: %zu nodes, %d threads, %d calls\n", nodes, read_counter(), host_calls);
  CUDA(cudaGraphExecDestroy(executable));
  CUDA(cudaGraphDestroy(graph));
  CUDA(cudaEventDestroy(fork));
  CUDA(cudaEventDestroy(join));
  CUDA(cudaStreamDestroy(stream));
  CUDA(cudaStreamDestroy(side));
}

cudaGraph_t one_kernel(cudaGraphNode_t* node, float* data, int count) {
  cudaGraph_t graph;
  CUDA(cudaGraphCreate(&graph, 0));
  void* arguments[] = {&data, &count};
  cudaKernelNodeParams parameters{};
  parameters.func = reinterpret_cast<void*>(scale);
  parameters.gridDim = 4;
  parameters.blockDim = 256;
  parameters.kernelParams = arguments;
  CUDA(cudaGraphAddKernelNode(node, graph, nullptr, 0, &parameters));
  cudaKernelNodeParams found;
  CUDA(cudaGraphKernelNodeGetParams(*node, &found));
  CHECK(found.func == reinterpret_cast<void*>(scale) && found.gridDim.x == 4);
  return graph;
}

void by_hand() {
  float *data, *other;
  CUDA(cudaMalloc(reinterpret_cast<void**>(&data), 4096));
  CUDA(cudaMalloc(reinterpret_cast<void**>(&other), 4096));
  std::vector<float> ones(1024, 1), values(1024);
  for (float* pointer : {data, other}) {
    CUDA(cudaMemcpy(pointer, ones.data(), 4096, cudaMemcpyHostToDevice));
  }
  const float twice[4] = {2, 2, 2, 2};
  CUDA(cudaMemcpyToSymbol(static_cast<const void*>(factors), twice, sizeof twice, 0,
                          cudaMemcpyHostToDevice));
  cudaGraphNode_t node, changed_node;
  cudaGraph_t graph = one_kernel(&node, data, 1024);
  cudaGraphExec_t executable = instantiate(graph);
  CUDA(cudaGraphLaunch(executable, nullptr));
  CUDA(cudaGraphLaunch(executable, nullptr));
  cudaGraph_t changed = one_kernel(&changed_node, other, 1024);
  update(executable, changed);
  CUDA(cudaGraphLaunch(executable, nullptr));
  CUDA(cudaMemcpy(values.data(), data, 4096, cudaMemcpyDeviceToHost));
  CHECK(values[0] == 4 && values[1023] == 4);
  CUDA(cudaMemcpy(values.data(), other, 4096, cudaMemcpyDeviceToHost));
  CHECK(values[0] == 2 && values[1023] == 2);
  CUDA(cudaGraphExecDestroy(executable));
  CUDA(cudaGraphDestroy(graph));
  CUDA(cudaGraphDestroy(changed));
  CUDA(cudaFree(data));
  CUDA(cudaFree(other));
  std::printf("graphs by hand: ok\n");
}

}  // namespace

void test_streams() {
  cudaStream_t stream;
  int lowest = 0, highest = 0, priority = 1;
  CUDA(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
  CUDA(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, highest));
  CUDA(cudaStreamGetPriority(stream, &priority));
  CHECK(priority == highest);
  cudaEvent_t begin, end;
  CUDA(cudaEventCreate(&begin));
  CUDA(cudaEventCreate(&end));
  int number = 0;
  clear_counter();
  CUDA(cudaEventRecord(begin, stream));
  CUDA(launch(count_threads, 2, 50, 0, stream));
  CUDA(cudaLaunchHostFunc(stream, add_one, &number));
  CUDA(cudaStreamAddCallback(stream, add_ten, &number, 0));
  CUDA(cudaEventRecord(end, stream));
  CUDA(cudaEventSynchronize(end));
  CUDA(cudaStreamQuery(stream));
  float elapsed = -1;
  CUDA(cudaEventElapsedTime(&elapsed, begin, end));
  CHECK(elapsed >= 0);
  std::printf("streams: %d threads, %d\n", read_counter(), number);
  CUDA(launch(count_threads, 1, 7, 0, cudaStreamPerThread));
  CUDA(cudaStreamSynchronize(cudaStreamPerThread));
  CUDA(launch(count_threads, 1, 7, 0, cudaStreamLegacy));
  CUDA(cudaDeviceSynchronize());
  std::printf("default streams: %d\n", read_counter());
  CUDA(cudaEventDestroy(begin));
  CUDA(cudaEventDestroy(end));
  CUDA(cudaStreamDestroy(stream));
}

void test_graphs() {
  captured();
  by_hand();
  CUDA(cudaGetLastError());
}
