// Graphs recorded from streams: fork and join, repeated launches, updates, clones, refusals.
#include "program.h"

__global__ void step(int* state, int value) { *state = *state * 3 + value; }
__global__ void join(const int* a, const int* b, int* out) { *out = *a * 1000 + *b; }

cudaGraph_t record(cudaStream_t stream, int* state, int first) {
  cudaGraph_t graph;
  CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  for (int i = 0; i < 5; ++i) step<<<1, 1, 0, stream>>>(state, first + i);
  CUDA(cudaStreamEndCapture(stream, &graph));
  return graph;
}

int main() {
  cudaStream_t stream, side;
  CUDA(cudaStreamCreate(&stream));
  CUDA(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
  DeviceArray<int> state(std::vector<int>{1});

  cudaGraph_t graph = record(stream, state.get(), 0);
  CHECK(state.values()[0] == 1);  // recording ran nothing
  size_t nodes = 0;
  CUDA(cudaGraphGetNodes(graph, nullptr, &nodes));
  CHECK(nodes == 5);
  cudaGraphExec_t exec;
  CUDA(cudaGraphInstantiate(&exec, graph, 0));
  unsigned expected = 1;
  for (int round = 0; round < 10; ++round) {
    CUDA(cudaGraphLaunch(exec, stream));
    for (int i = 0; i < 5; ++i) expected = expected * 3 + i;
  }
  CUDA(cudaStreamSynchronize(stream));
  CHECK(static_cast<unsigned>(state.values()[0]) == expected);
  std::printf("launched %u\n", expected);

  // A graph of the same shape can update the executable.
  cudaGraph_t other = record(stream, state.get(), 50);
  cudaGraphExecUpdateResultInfo result;
  CUDA(cudaGraphExecUpdate(exec, other, &result));
  CHECK(result.result == cudaGraphExecUpdateSuccess);
  CUDA(cudaGraphLaunch(exec, stream));
  for (int i = 0; i < 5; ++i) expected = expected * 3 + 50 + i;
  CUDA(cudaStreamSynchronize(stream));
  CHECK(static_cast<unsigned>(state.values()[0]) == expected);
  std::printf("updated %u\n", expected);

  cudaGraph_t clone;
  CUDA(cudaGraphClone(&clone, other));
  CUDA(cudaGraphDestroy(other));
  cudaGraphExec_t clone_exec;
  CUDA(cudaGraphInstantiate(&clone_exec, clone, 0));
  CUDA(cudaGraphLaunch(clone_exec, stream));
  for (int i = 0; i < 5; ++i) expected = expected * 3 + 50 + i;
  CUDA(cudaStreamSynchronize(stream));
  CHECK(static_cast<unsigned>(state.values()[0]) == expected);

  // Fork to a second stream and join again, with copies and fills.
  DeviceArray<int> a(1), b(1), joined(1);
  int *host_in, *host_out;
  CUDA(cudaMallocHost(&host_in, sizeof(int)));
  CUDA(cudaMallocHost(&host_out, sizeof(int)));
  cudaEvent_t fork, back;
  CUDA(cudaEventCreate(&fork));
  CUDA(cudaEventCreate(&back));
  CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  CUDA(cudaMemcpyAsync(a.get(), host_in, sizeof(int), cudaMemcpyHostToDevice, stream));
  CUDA(cudaEventRecord(fork, stream));
  CUDA(cudaStreamWaitEvent(side, fork, 0));
  CUDA(cudaMemsetAsync(b.get(), 0, sizeof(int), side));
  step<<<1, 1, 0, side>>>(b.get(), 7);
  CUDA(cudaEventRecord(back, side));
  step<<<1, 1, 0, stream>>>(a.get(), 1);
  CUDA(cudaStreamWaitEvent(stream, back, 0));
  join<<<1, 1, 0, stream>>>(a.get(), b.get(), joined.get());
  CUDA(cudaMemcpyAsync(host_out, joined.get(), sizeof(int), cudaMemcpyDeviceToHost, stream));
  cudaStreamCaptureStatus status;
  CUDA(cudaStreamIsCapturing(side, &status));
  CHECK(status == cudaStreamCaptureStatusActive);
  cudaGraph_t forked;
  CUDA(cudaStreamEndCapture(stream, &forked));
  CUDA(cudaStreamIsCapturing(side, &status));
  CHECK(status == cudaStreamCaptureStatusNone);
  CUDA(cudaGraphGetNodes(forked, nullptr, &nodes));
  size_t edges = 0;
  CUDA(cudaGraphGetEdges(forked, nullptr, nullptr, nullptr, &edges));
  std::printf("fork: %zu nodes, %zu edges\n", nodes, edges);
  cudaGraphExec_t forked_exec;
  CUDA(cudaGraphInstantiate(&forked_exec, forked, 0));
  for (int i = 0; i < 4; ++i) {
    *host_in = i * 10;
    CUDA(cudaGraphLaunch(forked_exec, stream));
    CUDA(cudaStreamSynchronize(stream));
    CHECK(*host_out == (i * 10 * 3 + 1) * 1000 + 7);
  }
  std::printf("joined %d\n", *host_out);

  // A call that cannot be captured invalidates the capture.
  CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  EXPECT(cudaErrorStreamCaptureUnsupported, cudaStreamSynchronize(stream));
  cudaGraph_t spoiled = nullptr;
  EXPECT(cudaErrorStreamCaptureInvalidated, cudaStreamEndCapture(stream, &spoiled));
  CHECK(spoiled == nullptr);
  CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  CUDA(cudaEventRecord(fork, stream));
  CUDA(cudaStreamWaitEvent(side, fork, 0));
  step<<<1, 1, 0, side>>>(b.get(), 1);
  EXPECT(cudaErrorStreamCaptureUnjoined, cudaStreamEndCapture(stream, &spoiled));
  cudaGetLastError();
  CUDA(cudaStreamSynchronize(stream));

  CUDA(cudaGraphExecDestroy(exec));
  CUDA(cudaGraphExecDestroy(clone_exec));
  CUDA(cudaGraphExecDestroy(forked_exec));
  CUDA(cudaGraphDestroy(graph));
  CUDA(cudaGraphDestroy(clone));
  CUDA(cudaGraphDestroy(forked));
}
