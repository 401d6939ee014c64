// One thread queries a stream and an event in a loop, while another thread queues work in the
// stream and then queries, too. No query reports unfinished work as done.
#include <atomic>
#include <thread>

#include "program.h"

__global__ void count_up(int* count) { ++*count; }

std::atomic<int> reached{0};
struct Wait {
  int round;
  static void run(void* wait) {
    while (reached < static_cast<Wait*>(wait)->round) std::this_thread::yield();
  }
};

int main() {
  cudaStream_t stream;
  cudaEvent_t event;
  DeviceArray<int> count(std::vector<int>{0});
  CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  // The first launch of a kernel loads its code, which waits for the device.
  DeviceArray<int> other(std::vector<int>{0});
  count_up<<<1, 1, 0, stream>>>(other.get());
  CUDA(cudaStreamSynchronize(stream));
  std::atomic<bool> over{false};
  const auto ask = [](cudaError_t error) {
    CHECK(error == cudaSuccess || error == cudaErrorNotReady);
  };
  std::thread asking([&] {
    while (!over) {
      ask(cudaStreamQuery(stream));
      ask(cudaEventQuery(event));
    }
  });
  for (int round = 1; round <= 300; ++round) {
    Wait wait{round};
    CUDA(cudaLaunchHostFunc(stream, Wait::run, &wait));
    EXPECT(cudaErrorNotReady, cudaStreamQuery(stream));
    count_up<<<1, 1, 0, stream>>>(count.get());
    CUDA(cudaGetLastError());
    EXPECT(cudaErrorNotReady, cudaStreamQuery(stream));
    CUDA(cudaEventRecord(event, stream));
    EXPECT(cudaErrorNotReady, cudaEventQuery(event));
    reached = round;
    CUDA(cudaStreamSynchronize(stream));
    EXPECT(cudaSuccess, cudaEventQuery(event));
  }
  over = true;
  asking.join();
  CUDA(cudaEventDestroy(event));
  CUDA(cudaStreamDestroy(stream));
  std::printf("counted to %d\n", count.values()[0]);
}
