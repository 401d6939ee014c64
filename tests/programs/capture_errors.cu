// Calls that a capture does not allow: their results, and their effect on the capture. Afterwards
// everything must work again. Every case captures a blocking stream with a kernel, makes the call,
// and prints the stream's capture status and the result of the end of the capture.
#include <functional>
#include <thread>

#include "program.h"

__global__ void step(int* state) { *state = *state * 3 + 1; }

cudaStream_t captured, other, apart;
cudaEvent_t event, outside;
int* state;

const char* name_of(cudaStreamCaptureStatus status) {
  return status == cudaStreamCaptureStatusNone     ? "none"
         : status == cudaStreamCaptureStatusActive ? "active"
                                                   : "invalidated";
}

// Launches a kernel. Clears the thread's last error, so that later checks do not see it.
cudaError_t launched(cudaStream_t stream) {
  step<<<1, 1, 0, stream>>>(state);
  return cudaGetLastError();
}

void show(const char* what, cudaError_t got, cudaStream_t stream) {
  cudaStreamCaptureStatus status;
  CUDA(cudaStreamIsCapturing(stream, &status));
  std::printf("%-28s %s, %s\n", what, cudaGetErrorName(got), name_of(status));
  (void)cudaGetLastError();
}

// Checks that nothing is left of the capture, and that the streams run new work.
void works_again() {
  CUDA(cudaDeviceSynchronize());
  cudaStreamCaptureStatus status;
  for (cudaStream_t stream : {captured, other, apart}) {
    CUDA(cudaStreamIsCapturing(stream, &status));
    CHECK(status == cudaStreamCaptureStatusNone);
    CUDA(cudaMemsetAsync(state, 0, sizeof(int), stream));
    CUDA(launched(stream));
    CUDA(cudaStreamSynchronize(stream));
    int value = -1;
    CUDA(cudaMemcpy(&value, state, sizeof value, cudaMemcpyDeviceToHost));
    CHECK(value == 1);
  }
}

void finish(cudaStream_t stream) {
  cudaGraph_t graph = nullptr;
  const cudaError_t ended = cudaStreamEndCapture(stream, &graph);
  size_t nodes = 0;
  if (graph) {
    CUDA(cudaGraphGetNodes(graph, nullptr, &nodes));
    CUDA(cudaGraphDestroy(graph));
  }
  std::printf("%-28s %s, %zu nodes\n", "  end", cudaGetErrorName(ended), nodes);
  (void)cudaGetLastError();
  works_again();
}

void in_capture(const char* what, const std::function<cudaError_t()>& call,
                cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal) {
  CUDA(cudaStreamBeginCapture(captured, mode));
  CUDA(launched(captured));
  show(what, call(), captured);
  finish(captured);
}

void memory() {
  static int host[4];
  const auto allocate = [] {
    void* memory = nullptr;
    const cudaError_t result = cudaMalloc(&memory, 64);
    if (memory) (void)cudaFree(memory);
    return result;
  };
  in_capture("malloc", allocate);
  in_capture("malloc, thread-local", allocate, cudaStreamCaptureModeThreadLocal);
  in_capture("malloc, relaxed", allocate, cudaStreamCaptureModeRelaxed);
  in_capture("malloc, mode exchanged", [&] {
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    CUDA(cudaThreadExchangeStreamCaptureMode(&mode));
    CHECK(mode == cudaStreamCaptureModeGlobal);
    const cudaError_t result = allocate();
    CUDA(cudaThreadExchangeStreamCaptureMode(&mode));
    CHECK(mode == cudaStreamCaptureModeRelaxed);
    return result;
  });
  void* spare;
  CUDA(cudaMalloc(&spare, 64));
  in_capture("free", [=] { return cudaFree(spare); });
  CUDA(cudaFree(spare));
  CUDA(cudaMalloc(&spare, 4 << 20));
  in_capture("free of 4 MiB", [=] { return cudaFree(spare); });
  in_capture("free of 4 MiB, relaxed", [=] { return cudaFree(spare); },
             cudaStreamCaptureModeRelaxed);
  in_capture("malloc pitch", [] {
    void* memory;
    size_t pitch;
    return cudaMallocPitch(&memory, &pitch, 64, 4);
  });
  in_capture("malloc async", [] {
    void* memory;
    CUDA(cudaMallocAsync(&memory, 64, captured));
    return cudaFreeAsync(memory, captured);
  });
  in_capture("malloc async elsewhere", [] {
    void* memory;
    return cudaMallocAsync(&memory, 64, apart);
  });
  in_capture("copy", [] { return cudaMemcpy(state, host, 4, cudaMemcpyHostToDevice); });
  in_capture("set", [] { return cudaMemset(state, 0, 4); });
  in_capture("copy of pageable memory",
             [] { return cudaMemcpyAsync(state, host, 4, cudaMemcpyHostToDevice, captured); });
}

void legacy_stream() {
  in_capture("launch, legacy", [] { return launched(nullptr); });
  in_capture("set async, legacy", [] { return cudaMemsetAsync(state, 0, 4, nullptr); });
  in_capture("query, legacy", [] { return cudaStreamQuery(nullptr); });
  in_capture("synchronize, legacy", [] { return cudaStreamSynchronize(nullptr); });
  in_capture("record, legacy", [] { return cudaEventRecord(event, nullptr); });
  in_capture("wait, legacy", [] {
    CUDA(cudaEventRecord(event, captured));
    return cudaStreamWaitEvent(nullptr, event, 0);
  });
  in_capture("host function, legacy", [] {
    return cudaLaunchHostFunc(
        nullptr, [](void*) {}, nullptr);
  });
  in_capture("begin, legacy",
             [] { return cudaStreamBeginCapture(cudaStreamLegacy, cudaStreamCaptureModeGlobal); });
  in_capture(
      "launch, legacy, relaxed", [] { return launched(nullptr); }, cudaStreamCaptureModeRelaxed);
  in_capture("launch elsewhere", [] { return launched(apart); });
  in_capture("launch, legacy, then more", [] {
    (void)launched(nullptr);
    return launched(captured);
  });

  // A capture of a stream that does not wait for the legacy stream.
  CUDA(cudaStreamBeginCapture(apart, cudaStreamCaptureModeGlobal));
  show("launch, legacy, apart", launched(nullptr), apart);
  CUDA(launched(apart));
  finish(apart);
}

void waiting() {
  in_capture("device synchronize", [] { return cudaDeviceSynchronize(); });
  in_capture("synchronize", [] { return cudaStreamSynchronize(captured); });
  in_capture("query", [] { return cudaStreamQuery(captured); });
  in_capture("callback", [] {
    return cudaStreamAddCallback(
        captured, [](cudaStream_t, cudaError_t, void*) {}, nullptr, 0);
  });
  in_capture("host function", [] {
    return cudaLaunchHostFunc(
        captured, [](void*) {}, nullptr);
  });
}

void events() {
  const auto with_event = [](const char* what, const std::function<cudaError_t()>& call) {
    in_capture(what, [&] {
      CUDA(cudaEventRecord(event, captured));
      return call();
    });
  };
  with_event("query of its event", [] { return cudaEventQuery(event); });
  with_event("wait for its event", [] { return cudaEventSynchronize(event); });
  with_event("time of its event", [] {
    float milliseconds;
    return cudaEventElapsedTime(&milliseconds, event, event);
  });
  // After the capture, its event cannot be used outside.
  std::printf("%-28s %s\n", "its event afterwards", cudaGetErrorName(cudaEventQuery(event)));
  (void)cudaGetLastError();
  CUDA(cudaEventRecord(outside, apart));
  in_capture("event from outside", [] { return cudaStreamWaitEvent(captured, outside, 0); });
  in_capture("query of another event", [] { return cudaEventQuery(outside); });
  in_capture("merge", [] {
    CUDA(cudaStreamBeginCapture(apart, cudaStreamCaptureModeGlobal));
    CUDA(cudaEventRecord(event, apart));
    const cudaError_t result = cudaStreamWaitEvent(captured, event, 0);
    cudaGraph_t graph;
    EXPECT(cudaErrorStreamCaptureInvalidated, cudaStreamEndCapture(apart, &graph));
    return result;
  });
}

void ends() {
  cudaGraph_t graph = nullptr;
  const auto print = [](const char* what, cudaError_t result) {
    std::printf("%-28s %s\n", what, cudaGetErrorName(result));
    (void)cudaGetLastError();
  };
  print("end without begin", cudaStreamEndCapture(captured, &graph));
  in_capture("begin twice",
             [] { return cudaStreamBeginCapture(captured, cudaStreamCaptureModeGlobal); });
  in_capture("end of a joined stream", [] {
    CUDA(cudaEventRecord(event, captured));
    CUDA(cudaStreamWaitEvent(other, event, 0));
    cudaGraph_t none;
    return cudaStreamEndCapture(other, &none);
  });
  in_capture("unjoined", [] {
    CUDA(cudaEventRecord(event, captured));
    CUDA(cudaStreamWaitEvent(other, event, 0));
    return launched(other);
  });
  for (const cudaStreamCaptureMode mode :
       {cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeRelaxed}) {
    CUDA(cudaStreamBeginCapture(captured, mode));
    CUDA(launched(captured));
    cudaError_t ended = cudaSuccess;
    std::thread([&] { ended = cudaStreamEndCapture(captured, &graph); }).join();
    print("end by another thread", ended);
    works_again();
    if (ended == cudaSuccess) CUDA(cudaGraphDestroy(graph));
  }
  cudaStream_t gone;
  CUDA(cudaStreamCreate(&gone));
  CUDA(cudaStreamBeginCapture(gone, cudaStreamCaptureModeGlobal));
  CUDA(launched(gone));
  print("destroyed in capture", cudaStreamDestroy(gone));
  works_again();
}

// Another thread's calls while this one captures.
void threads() {
  for (const cudaStreamCaptureMode mode :
       {cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal}) {
    in_capture(
        mode == cudaStreamCaptureModeGlobal ? "malloc by another thread" : "the same, thread-local",
        [] {
          cudaError_t result = cudaSuccess;
          std::thread([&] {
            void* memory = nullptr;
            result = cudaMalloc(&memory, 64);
            if (memory) (void)cudaFree(memory);
          }).join();
          return result;
        },
        mode);
  }
  in_capture("relaxed other thread", [] {
    cudaError_t result = cudaSuccess;
    std::thread([&] {
      cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
      CUDA(cudaThreadExchangeStreamCaptureMode(&mode));
      void* memory = nullptr;
      result = cudaMalloc(&memory, 64);
      if (memory) (void)cudaFree(memory);
    }).join();
    return result;
  });
}

void bad_arguments() {
  in_capture("launch of 2048 threads", [] {
    step<<<1, 2048, 0, captured>>>(state);
    return cudaGetLastError();
  });
}

int main() {
  CUDA(cudaStreamCreate(&captured));
  CUDA(cudaStreamCreate(&other));
  CUDA(cudaStreamCreateWithFlags(&apart, cudaStreamNonBlocking));
  CUDA(cudaEventCreate(&event));
  CUDA(cudaEventCreate(&outside));
  CUDA(cudaMalloc(&state, sizeof(int)));
  works_again();
  memory();
  legacy_stream();
  waiting();
  events();
  ends();
  threads();
  bad_arguments();
}
