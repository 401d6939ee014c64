// A random web of dependent kernels over several host threads, streams and events. Every kernel
// reads the result of another kernel, so any change of their order changes the result.
#include <condition_variable>
#include <mutex>
#include <thread>

#include "program.h"

constexpr int kThreads = 4, kStreamsPerThread = 2, kStreams = kThreads * kStreamsPerThread;
constexpr int kSteps = 600;

// Only stream `target` writes cell `target`; cell `source` belongs to another stream.
__global__ void mix(unsigned* cells, int target, int source, unsigned salt) {
  cells[target] = cells[target] * 1664525u + (cells[source] ^ salt);
}

struct Step {
  int target, source;
  unsigned salt;
};

int main() {
  Random random(7);
  std::vector<Step> steps(kSteps);
  std::vector<unsigned> expected(kStreams);
  for (int i = 0; i < kStreams; ++i) expected[i] = i + 1;
  DeviceArray<unsigned> cells(expected);
  for (Step& step : steps) {
    step.target = random.below(kStreams);
    step.source = (step.target + 1 + random.below(kStreams - 1)) % kStreams;
    step.salt = random.next();
    expected[step.target] = expected[step.target] * 1664525u + (expected[step.source] ^ step.salt);
  }

  cudaStream_t streams[kStreams];
  for (int i = 0; i < kStreams; ++i) {
    CUDA(cudaStreamCreateWithFlags(&streams[i], i % 2 ? cudaStreamNonBlocking : cudaStreamDefault));
  }
  // After each step: an event in the stream that wrote the cell.
  std::vector<cudaEvent_t> events(kSteps);
  for (cudaEvent_t& event : events) CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));

  std::mutex mutex;
  std::condition_variable changed;
  int next = 0;
  const auto work = [&](int me) {
    std::vector<int> last_touch(kStreams, -1);  // per cell: the last step that read or wrote it
    std::vector<int> touches;
    for (int i = 0; i < kSteps; ++i) {
      const Step& step = steps[i];
      if (step.target / kStreamsPerThread == me) {
        std::unique_lock lock(mutex);
        changed.wait(lock, [&] { return next == i; });
        for (const int cell : {step.target, step.source}) {
          if (last_touch[cell] >= 0) {
            CUDA(cudaStreamWaitEvent(streams[step.target], events[last_touch[cell]], 0));
          }
        }
        mix<<<1, 1, 0, streams[step.target]>>>(cells.get(), step.target, step.source, step.salt);
        CUDA(cudaGetLastError());
        CUDA(cudaEventRecord(events[i], streams[step.target]));
        ++next;
        changed.notify_all();
      }
      last_touch[step.target] = last_touch[step.source] = i;
    }
  };
  std::vector<std::thread> threads;
  for (int me = 0; me < kThreads; ++me) threads.emplace_back(work, me);
  for (std::thread& thread : threads) thread.join();
  CUDA(cudaEventSynchronize(events[kSteps - 1]));
  for (cudaStream_t stream : streams) CUDA(cudaStreamSynchronize(stream));
  CHECK(cells.values() == expected);
  print_digest("cells", expected);

  // Copies through one cell in both directions, each after the other.
  unsigned* host;
  CUDA(cudaMallocHost(&host, sizeof(unsigned)));
  *host = 1;
  unsigned value = 1;
  for (unsigned i = 0; i < 200; ++i) {
    CUDA(cudaMemcpyAsync(cells.get(), host, sizeof(unsigned), cudaMemcpyHostToDevice, streams[0]));
    mix<<<1, 1, 0, streams[0]>>>(cells.get(), 0, 0, i);
    CUDA(cudaMemcpyAsync(host, cells.get(), sizeof(unsigned), cudaMemcpyDeviceToHost, streams[0]));
    value = value * 1664525u + (value ^ i);
  }
  CUDA(cudaStreamSynchronize(streams[0]));
  CHECK(*host == value);
  std::printf("value %08x\n", value);
  CUDA(cudaFreeHost(host));
  for (cudaEvent_t event : events) CUDA(cudaEventDestroy(event));
  for (cudaStream_t stream : streams) CUDA(cudaStreamDestroy(stream));
}
