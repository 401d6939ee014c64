// Work that is queued after work that does not end: which threads and streams wait for it, and
// which do not. The gate is a host function, which holds its stream until the program opens it.
#include <atomic>
#include <chrono>
#include <thread>

#include <cuda.h>

#include "program.h"

const char kPtx[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry empty() { ret; }";

__global__ void add(unsigned* sum, unsigned value) { atomicAdd(sum, value); }

class Gate {
 public:
  explicit Gate(cudaStream_t stream) {
    CUDA(cudaLaunchHostFunc(
        stream,
        [](void* self) {
          while (!static_cast<Gate*>(self)->open_) std::this_thread::yield();
        },
        this));
  }
  ~Gate() { open(); }
  void open() { open_ = true; }

 private:
  std::atomic<bool> open_{false};
};

// Makes calls that must return while the gate is closed: for a stream whose queue is not full, and
// on another device.
void others_go_on(cudaStream_t idle, int devices) {
  if (devices > 1) {
    CUDA(cudaSetDevice(1));
    {
      DeviceArray<unsigned> sum(std::vector<unsigned>{7});
      add<<<1, 1>>>(sum.get(), 1);
      CHECK(sum.values()[0] == 8);
    }
    CUDA(cudaSetDevice(0));
  }
  if (!idle) return;
  CHECK(cudaStreamQuery(idle) == cudaSuccess);
  CUDA(cudaStreamSynchronize(idle));
}

// A queue takes a thousand launches. All of them are done before the next section.
void queue_a_thousand() {
  DeviceArray<unsigned> sum(std::vector<unsigned>{0});
  cudaStream_t stream;
  CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 300; ++i) add<<<1, 1, 0, stream>>>(sum.get(), 1);
    if (round == 0) CUDA(cudaStreamSynchronize(stream));
    if (round > 0) CUDA(cudaDeviceSynchronize());
    Gate gate(stream);
    for (int i = 0; i < 1000; ++i) {
      add<<<1, 1, 0, stream>>>(sum.get(), 1);
      if (round > 0 && i == 0) CHECK(cudaStreamQuery(stream) == cudaErrorNotReady);
    }
    CHECK(cudaStreamQuery(stream) == cudaErrorNotReady);
    gate.open();
    CUDA(cudaStreamSynchronize(stream));
  }
  std::printf("thousands: %u\n", sum.values()[0]);
  CUDA(cudaStreamDestroy(stream));
}

// Further launches block their thread, and threads that wait for them, but no other thread.
void overfill(cudaStream_t stream, int devices) {
  DeviceArray<unsigned> sum(std::vector<unsigned>{0});
  cudaStream_t idle;
  CUDA(cudaStreamCreateWithFlags(&idle, cudaStreamNonBlocking));
  Gate gate(stream);
  std::atomic<int> launched{0};
  std::thread thread([&] {
    for (; launched < 5000; ++launched) add<<<1, 1, 0, stream>>>(sum.get(), 1);
    CUDA(cudaGetLastError());
  });
  while (launched < 900) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // until it is blocked, most likely
  std::vector<std::thread> waiting;
  for (int i = 0; i < 10; ++i) waiting.emplace_back([&] { CUDA(cudaStreamSynchronize(stream)); });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // until they wait, most likely
  others_go_on(idle, devices);
  for (int i = 0; i < 100; ++i) add<<<1, 1, 0, idle>>>(sum.get(), 1);
  CUDA(cudaStreamSynchronize(idle));
  CHECK(launched < 5000);
  gate.open();
  thread.join();
  for (std::thread& one : waiting) one.join();
  FINISH();
  std::printf("overfilled: %u\n", sum.values()[0]);
  CUDA(cudaStreamDestroy(idle));
}

// Queries take no room in a queue: repeated queries of a held stream while other work ends, a query
// after each of its many commands, and queries of an event that is recorded repeatedly.
void ask_often(int devices) {
  constexpr int kPairs = 450;  // launches, records and the gate are fewer than a thousand
  DeviceArray<unsigned> sum(std::vector<unsigned>{0});
  cudaStream_t held, idle;
  cudaEvent_t event, past;
  CUDA(cudaStreamCreateWithFlags(&held, cudaStreamNonBlocking));
  CUDA(cudaStreamCreateWithFlags(&idle, cudaStreamNonBlocking));
  CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  CUDA(cudaEventCreateWithFlags(&past, cudaEventDisableTiming));
  {
    Gate gate(held);
    add<<<1, 1, 0, held>>>(sum.get(), 1);
    CUDA(cudaEventRecord(event, held));
    for (int i = 0; i < 3000; ++i) {
      if (i % 100 == 0) CUDA(cudaEventRecord(past, idle));
      if (i % 100 == 0) CUDA(cudaEventSynchronize(past));
      CUDA(cudaEventQuery(past));
      CUDA(cudaStreamQuery(idle));
      EXPECT(cudaErrorNotReady, cudaStreamQuery(held));
      EXPECT(cudaErrorNotReady, cudaEventQuery(event));
    }
    for (int i = 0; i < kPairs; ++i) {
      add<<<1, 1, 0, held>>>(sum.get(), 1);
      EXPECT(cudaErrorNotReady, cudaStreamQuery(held));
      CUDA(cudaEventRecord(event, held));
      EXPECT(cudaErrorNotReady, cudaEventQuery(event));
    }
    others_go_on(idle, devices);
  }
  CUDA(cudaEventSynchronize(event));
  CUDA(cudaStreamSynchronize(held));
  CUDA(cudaStreamQuery(held));
  std::printf("asked often: %u\n", sum.values()[0]);
  CUDA(cudaEventDestroy(past));
  CUDA(cudaEventDestroy(event));
  CUDA(cudaStreamDestroy(idle));
  CUDA(cudaStreamDestroy(held));
}

// If the driver waits in a call until the device is idle, it blocks the calling thread, but not
// other threads that use other devices. Other calls return while the device is busy.
enum class Waits { kNo, kYes };
template <typename Call>
void wait_in(const char* name, int devices, Waits expected, Call call) {
  cudaStream_t stream;
  CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  Gate gate(stream);
  std::atomic<bool> done{false};
  std::thread thread([&] {
    CUDA(cudaSetDevice(0));
    call();
    done = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  others_go_on(nullptr, devices);
  for (int i = 0; expected == Waits::kNo && i < 1000 && !done; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  const bool waited = !done;
  gate.open();
  thread.join();
  std::printf("%s: %s\n", name, waited ? "waited" : "did not wait");
}

// Memory of a busy device is freed while another device is current: only the freeing thread waits.
void free_on_a_busy_device() {
  cudaStream_t stream;
  unsigned* memory;
  CUDA(cudaSetDevice(1));
  CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CUDA(cudaMalloc(&memory, 64));
  {
    Gate gate(stream);
    std::thread thread([=] {
      CUDA(cudaSetDevice(0));
      CUDA(cudaFree(memory));
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // until it waits, most likely
    CUDA(cudaSetDevice(0));
    {
      DeviceArray<unsigned> sum(std::vector<unsigned>{7});
      add<<<1, 1>>>(sum.get(), 1);
      CHECK(sum.values()[0] == 8);
    }
    gate.open();
    thread.join();
  }
  CUDA(cudaStreamDestroy(stream));
}

int main() {
  std::setvbuf(stdout, nullptr, _IONBF, 0);  // shows where the program hangs
  int devices = 0;
  CUDA(cudaGetDeviceCount(&devices));
  CUDA(cudaSetDevice(0));
  queue_a_thousand();
  ask_often(devices);
  cudaStream_t stream;
  CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  overfill(stream, devices);

  wait_in("stack size", devices, Waits::kYes,
          [] { CUDA(cudaDeviceSetLimit(cudaLimitStackSize, 2048)); });
  unsigned *plain, *pooled;
  CUDA(cudaMalloc(&plain, 64));
  CUDA(cudaMallocAsync(&pooled, 64, stream));
  CUDA(cudaStreamSynchronize(stream));
  wait_in("free", devices, Waits::kYes, [=] { CUDA(cudaFree(plain)); });
  // Memory of pools is freed without a wait; the program chooses the right time.
  wait_in("free of stream-ordered memory", devices, Waits::kNo, [=] { CUDA(cudaFree(pooled)); });

  if (devices > 1) free_on_a_busy_device();

  wait_in("module", devices, Waits::kYes, [] {
    CUmodule module;
    CHECK(cuModuleLoadData(&module, kPtx) == CUDA_SUCCESS);
    CHECK(cuModuleUnload(module) == CUDA_SUCCESS);
  });
  // A context ends when the device has no work in any context.
  wait_in("another context", devices, Waits::kYes, [] {
    CUcontext context;
    CHECK(cuCtxCreate(&context, nullptr, 0, 0) == CUDA_SUCCESS);
    CHECK(cuCtxDestroy(context) == CUDA_SUCCESS);
  });

  // A reset waits for the work that was queued before it.
  unsigned *sum, result = 0;
  CUDA(cudaMalloc(&sum, sizeof *sum));
  CUDA(cudaHostRegister(&result, sizeof result, cudaHostRegisterDefault));
  CUDA(cudaMemsetAsync(sum, 0, sizeof *sum, stream));
  Gate gate(stream);
  for (int i = 0; i < 42; ++i) add<<<1, 1, 0, stream>>>(sum, 1);
  CUDA(cudaMemcpyAsync(&result, sum, sizeof result, cudaMemcpyDeviceToHost, stream));
  std::atomic<bool> reset{false};
  std::thread thread([&] {
    CUDA(cudaSetDevice(0));
    CUDA(cudaDeviceReset());
    reset = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  others_go_on(nullptr, devices);
  CHECK(!reset);
  gate.open();
  thread.join();
  std::printf("reset: %u\n", result);
}
