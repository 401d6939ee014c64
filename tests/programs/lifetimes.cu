// Objects that end while they are in use: streams and events with pending work, memory that a
// kernel uses, a device that is reset meanwhile; and objects of one device used with objects of
// another.
#include <thread>

#include "program.h"

__global__ void store(int* out, int value) { *out = value; }
__global__ void add(int* out, int value) { *out += value; }

__global__ void take_long(int* out, int rounds) {
  volatile int* counter = out;
  for (int i = 0; i < rounds; ++i) *counter = *counter + 1;
}

constexpr int kRounds = 200000;

// cudaStreamDestroy returns at once, and the stream's work is still done.
void destroyed_stream() {
  DeviceArray<int> out(2);
  out.clear();
  cudaStream_t stream;
  CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  take_long<<<1, 1, 0, stream>>>(out.get(), kRounds);
  add<<<1, 1, 0, stream>>>(out.get(), 7);
  CUDA(cudaGetLastError());
  CUDA(cudaStreamDestroy(stream));
  CUDA(cudaDeviceSynchronize());
  CHECK(out.values()[0] == kRounds + 7);
  // A new stream for every piece of work, destroyed right after it.
  out.clear();
  for (int i = 0; i < 50; ++i) {
    CUDA(cudaStreamCreate(&stream));
    add<<<1, 1, 0, stream>>>(out.get(), i);
    CUDA(cudaStreamSynchronize(stream));
    add<<<1, 1, 0, stream>>>(out.get() + 1, 1);
    CUDA(cudaStreamDestroy(stream));
    CUDA(cudaDeviceSynchronize());
  }
  CHECK(out.values() == (std::vector<int>{49 * 50 / 2, 50}));
  std::puts("destroyed streams");
}

// A stream waits for the record that an event had when the wait was issued.
void destroyed_event() {
  DeviceArray<int> out(1);
  out.clear();
  cudaStream_t first, second;
  CUDA(cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking));
  CUDA(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
  cudaEvent_t event;
  CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  take_long<<<1, 1, 0, first>>>(out.get(), kRounds);
  CUDA(cudaEventRecord(event, first));
  CUDA(cudaStreamWaitEvent(second, event, 0));
  CUDA(cudaEventDestroy(event));
  add<<<1, 1, 0, second>>>(out.get(), 5);
  CUDA(cudaStreamDestroy(first));
  CUDA(cudaStreamSynchronize(second));
  CHECK(out.values()[0] == kRounds + 5);
  // Recorded and destroyed while it is pending.
  CUDA(cudaEventCreate(&event));
  take_long<<<1, 1, 0, second>>>(out.get(), kRounds);
  CUDA(cudaEventRecord(event, second));
  CUDA(cudaEventDestroy(event));
  CUDA(cudaStreamSynchronize(second));
  CHECK(out.values()[0] == 2 * kRounds + 5);
  CUDA(cudaStreamDestroy(second));
  std::puts("destroyed events");
}

// cudaFree returns after the kernels that may use the memory.
void freed_memory() {
  int* used;
  CUDA(cudaMalloc(&used, sizeof(int)));
  DeviceArray<int> out(1);
  out.clear();
  CUDA(cudaMemset(used, 0, sizeof(int)));
  cudaStream_t stream;
  cudaEvent_t done;
  CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CUDA(cudaEventCreate(&done));
  CUDA(cudaDeviceSynchronize());
  take_long<<<1, 1, 0, stream>>>(used, kRounds);
  add<<<1, 1, 0, stream>>>(out.get(), 3);
  CUDA(cudaEventRecord(done, stream));
  CUDA(cudaFree(used));
  EXPECT(cudaSuccess, cudaEventQuery(done));
  CUDA(cudaStreamSynchronize(stream));
  CHECK(out.values()[0] == 3);
  // Page-locked memory that a copy reads.
  const size_t bytes = 8 << 20;
  unsigned char* host;
  DeviceArray<unsigned char> device(bytes);
  CUDA(cudaMallocHost(&host, bytes));
  std::fill(host, host + bytes, 9);
  CUDA(cudaMemcpyAsync(device.get(), host, bytes, cudaMemcpyHostToDevice, stream));
  CUDA(cudaFreeHost(host));
  CUDA(cudaStreamSynchronize(stream));
  CHECK(device.values() == std::vector<unsigned char>(bytes, 9));
  CUDA(cudaEventDestroy(done));
  CUDA(cudaStreamDestroy(stream));
  std::puts("freed memory");
}

// An executable that is destroyed while it runs, and the graph it came from before that.
void destroyed_graph() {
  DeviceArray<int> out(1);
  out.clear();
  cudaStream_t stream;
  CUDA(cudaStreamCreate(&stream));
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  take_long<<<1, 1, 0, stream>>>(out.get(), kRounds);
  add<<<1, 1, 0, stream>>>(out.get(), 4);
  CUDA(cudaStreamEndCapture(stream, &graph));
  CUDA(cudaGraphInstantiate(&executable, graph, 0));
  CUDA(cudaGraphDestroy(graph));
  CUDA(cudaGraphLaunch(executable, stream));
  CUDA(cudaGraphExecDestroy(executable));
  CUDA(cudaStreamSynchronize(stream));
  CHECK(out.values()[0] == kRounds + 4);
  CUDA(cudaStreamDestroy(stream));
  std::puts("destroyed graphs");
}

// Each thread has its own default stream. The work of an ended thread is still done.
void threads() {
  constexpr int kThreads = 4;
  DeviceArray<int> out(kThreads);
  out.clear();
  std::vector<std::thread> all;
  for (int t = 0; t < kThreads; ++t) {
    all.emplace_back([&, t] {
      CUDA(cudaSetDevice(0));
      take_long<<<1, 1, 0, cudaStreamPerThread>>>(out.get() + t, kRounds / 10);
      for (int i = 0; i < 10; ++i) add<<<1, 1, 0, cudaStreamPerThread>>>(out.get() + t, i);
      CUDA(cudaGetLastError());
      if (t % 2 == 0) CUDA(cudaStreamSynchronize(cudaStreamPerThread));
    });
  }
  for (std::thread& thread : all) thread.join();
  CUDA(cudaDeviceSynchronize());
  CHECK(out.values() == std::vector<int>(kThreads, kRounds / 10 + 45));
  // Each thread has its own last error.
  EXPECT(cudaErrorInvalidDevice, cudaSetDevice(-5));
  cudaError_t elsewhere = cudaErrorUnknown;
  std::thread([&] { elsewhere = cudaGetLastError(); }).join();
  CHECK(elsewhere == cudaSuccess);
  EXPECT(cudaErrorInvalidDevice, cudaGetLastError());
  EXPECT(cudaSuccess, cudaGetLastError());
  std::puts("threads");
}

// Statements of CUDA's guide about several devices. Does nothing with one device.
void several_devices() {
  int devices = 0;
  CUDA(cudaGetDeviceCount(&devices));
  if (devices >= 2) {
    cudaStream_t streams[2];
    cudaEvent_t events[2];
    int* memory[2];
    for (int d = 0; d < 2; ++d) {
      CUDA(cudaSetDevice(d));
      CUDA(cudaStreamCreate(&streams[d]));
      CUDA(cudaEventCreate(&events[d]));
      CUDA(cudaMalloc(&memory[d], sizeof(int)));
      CUDA(cudaMemset(memory[d], 0, sizeof(int)));
      CUDA(cudaDeviceSynchronize());
    }
    CUDA(cudaSetDevice(0));
    // "A memory copy will succeed even if ...".
    int value = 6;
    CUDA(cudaMemcpyAsync(memory[1], &value, sizeof value, cudaMemcpyHostToDevice, streams[1]));
    CUDA(cudaStreamSynchronize(streams[1]));
    // "cudaEventRecord() will fail if the input event and input stream are associated to different
    // devices".
    EXPECT(cudaErrorInvalidResourceHandle, cudaEventRecord(events[0], streams[1]));
    (void)cudaGetLastError();
    // "cudaEventSynchronize() and cudaEventQuery() will succeed even if ...".
    CUDA(cudaSetDevice(1));
    take_long<<<1, 1, 0, streams[1]>>>(memory[1], kRounds);
    CUDA(cudaEventRecord(events[1], streams[1]));
    CUDA(cudaSetDevice(0));
    CUDA(cudaEventSynchronize(events[1]));
    CUDA(cudaEventQuery(events[1]));
    // "cudaEventElapsedTime() will fail if the two input events are associated to different
    // devices".
    CUDA(cudaEventRecord(events[0], streams[0]));
    CUDA(cudaEventSynchronize(events[0]));
    float milliseconds;
    EXPECT(cudaErrorInvalidResourceHandle,
           cudaEventElapsedTime(&milliseconds, events[0], events[1]));
    (void)cudaGetLastError();
    // "cudaStreamWaitEvent() will succeed even if ...".
    CUDA(cudaStreamWaitEvent(streams[0], events[1], 0));
    store<<<1, 1, 0, streams[0]>>>(memory[0], 8);
    CUDA(cudaStreamSynchronize(streams[0]));
    int found[2];
    for (int d = 0; d < 2; ++d)
      CUDA(cudaMemcpy(&found[d], memory[d], sizeof(int), cudaMemcpyDefault));
    CHECK(found[0] == 8 && found[1] == kRounds + 6);
    // The reset of one device does not affect another device.
    CUDA(cudaSetDevice(1));
    CUDA(cudaDeviceReset());
    CUDA(cudaSetDevice(0));
    store<<<1, 1, 0, streams[0]>>>(memory[0], 9);
    CUDA(cudaStreamSynchronize(streams[0]));
    CUDA(cudaMemcpy(&found[0], memory[0], sizeof(int), cudaMemcpyDefault));
    CHECK(found[0] == 9);
    CUDA(cudaStreamDestroy(streams[0]));
    CUDA(cudaEventDestroy(events[0]));
    CUDA(cudaFree(memory[0]));
  }
  std::puts("several devices");
}

// A reset ends everything on the device. After that, everything works again.
void reset() {
  for (int round = 0; round < 3; ++round) {
    int *memory, *host;
    cudaStream_t stream;
    CUDA(cudaMalloc(&memory, sizeof(int)));
    CUDA(cudaMallocHost(&host, sizeof(int)));
    CUDA(cudaStreamCreate(&stream));
    CUDA(cudaMemsetAsync(memory, 0, sizeof(int), stream));
    take_long<<<1, 1, 0, stream>>>(memory, kRounds);
    CUDA(cudaMemcpyAsync(host, memory, sizeof(int), cudaMemcpyDeviceToHost, stream));
    if (round != 1) {
      CUDA(cudaStreamSynchronize(stream));
      CHECK(*host == kRounds);
    }
    if (round == 2) {
      // During a capture, which the reset also ends.
      CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
      add<<<1, 1, 0, stream>>>(memory, 1);
      CUDA(cudaGetLastError());
      CUDA(cudaStreamDestroy(stream));
    }
    CUDA(cudaDeviceReset());
  }
  DeviceArray<int> out(1);
  store<<<1, 1>>>(out.get(), 11);
  FINISH();
  CHECK(out.values()[0] == 11);
  std::puts("reset");
}

int main() {
  destroyed_stream();
  destroyed_event();
  freed_memory();
  destroyed_graph();
  threads();
  several_devices();
  reset();
}
