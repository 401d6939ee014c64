// More streams than a GPU has queues, all waiting at the same time: for a gate, for copies between
// devices and to the host, and for each other's events. Streams that share a queue wait for each
// other there, but never for work that was queued later.
#include <atomic>
#include <chrono>
#include <thread>
#include <utility>

#include "program.h"

constexpr int kStreams = 40;
constexpr size_t kWords = 16'384;

__global__ void fill(unsigned* words, unsigned first) {
  for (size_t i = threadIdx.x; i < kWords; i += blockDim.x) words[i] = first + i;
}
__global__ void add(unsigned* words, unsigned value) {
  for (size_t i = threadIdx.x; i < kWords; i += blockDim.x) words[i] += value;
}

class Side {
 public:
  Side(int device, int priority) : device_(device), words_((use(), kStreams * kWords)) {
    for (cudaStream_t& stream : streams_) {
      CUDA(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, priority));
      int seen = 1;
      CUDA(cudaStreamGetPriority(stream, &seen));
      CHECK(seen == priority);
    }
    for (cudaEvent_t& event : events_) {
      CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    }
    CUDA(cudaMallocHost(&fetched_, kStreams * kWords * sizeof(unsigned)));
    // Loads the code now: loading may wait for the device.
    fill<<<1, 128>>>(words(0), 0);
    add<<<1, 128>>>(words(0), 0);
    FINISH();
  }
  ~Side() {
    use();
    for (cudaStream_t stream : streams_) cudaStreamDestroy(stream);
    for (cudaEvent_t event : events_) cudaEventDestroy(event);
    cudaFreeHost(fetched_);
  }

  void use() const { CUDA(cudaSetDevice(device_)); }
  int device() const { return device_; }
  cudaStream_t stream(int i) const { return streams_[i]; }
  cudaEvent_t event(int i) const { return events_[i]; }
  unsigned* words(int i) const { return words_.get() + i * kWords; }
  // Copies part `i` of the other side to part `i` of this side, in `stream`.
  void take(const Side& other, int i, cudaStream_t stream) const {
    CUDA(cudaMemcpyPeerAsync(words(i), device_, other.words(i), other.device_,
                             kWords * sizeof(unsigned), stream));
  }
  // Copies part `i` to the host.
  void fetch(int i) const {
    CUDA(cudaMemcpyAsync(fetched_ + i * kWords, words(i), kWords * sizeof(unsigned),
                         cudaMemcpyDeviceToHost, stream(i)));
  }
  std::vector<unsigned> values() const { return words_.values(); }
  std::vector<unsigned> fetched() const { return {fetched_, fetched_ + kStreams * kWords}; }

 private:
  const int device_;
  DeviceArray<unsigned> words_;
  cudaStream_t streams_[kStreams];
  cudaEvent_t events_[kStreams];
  unsigned* fetched_ = nullptr;
};

// Holds `count` of the side's streams, from `first` on, until it is opened.
class Gate {
 public:
  explicit Gate(const Side& side, int first = 0, int count = kStreams) {
    side.use();
    CUDA(cudaLaunchHostFunc(
        side.stream(first),
        [](void* self) {
          while (!static_cast<Gate*>(self)->open_) std::this_thread::yield();
        },
        this));
    CUDA(cudaEventRecord(side.event(first), side.stream(first)));
    for (int i = first + 1; i < first + count; ++i) {
      CUDA(cudaStreamWaitEvent(side.stream(i), side.event(first)));
    }
  }
  void open() { open_ = true; }

 private:
  std::atomic<bool> open_{false};
};

void finish(const Side& one, const Side& other) {
  for (const Side* side : {&one, &other}) {
    side->use();
    FINISH();
  }
}

// Every stream of one device writes, and the result is copied to the other device.
void copies(const char* name, const Side& from, const Side& to) {
  Gate gate(from);
  for (int i = 0; i < kStreams; ++i) {
    fill<<<1, 128, 0, from.stream(i)>>>(from.words(i), i * 1000);
    to.take(from, i, from.stream(i));
    add<<<1, 128, 0, from.stream(i)>>>(from.words(i), 7);
    from.fetch(i);
  }
  gate.open();
  finish(from, to);
  std::printf("%s, ", name);
  print_digest("copied", to.values());
  std::printf("%s, ", name);
  print_digest("changed behind the copies", from.values());
  std::printf("%s, ", name);
  print_digest("fetched", from.fetched());
}

// Data goes to the other device, is changed there, and comes back, with events between the streams
// of both sides. At the end each stream waits for the previous stream.
void round_trips(const char* name, const Side& from, const Side& to) {
  Gate gate(from);
  for (int i = 0; i < kStreams; ++i) {
    from.use();
    fill<<<1, 128, 0, from.stream(i)>>>(from.words(i), i * 77);
    CUDA(cudaEventRecord(from.event(i), from.stream(i)));
    to.use();
    CUDA(cudaStreamWaitEvent(to.stream(i), from.event(i)));
    to.take(from, i, to.stream(i));
    add<<<1, 128, 0, to.stream(i)>>>(to.words(i), i);
    CUDA(cudaEventRecord(to.event(i), to.stream(i)));
    from.use();
    CUDA(cudaStreamWaitEvent(from.stream(i), to.event(i)));
    if (i > 0) CUDA(cudaStreamWaitEvent(from.stream(i), from.event(i - 1)));
    from.take(to, i, from.stream(i));
    add<<<1, 128, 0, from.stream(i)>>>(from.words(i), 1);
  }
  gate.open();
  finish(from, to);
  std::printf("%s, ", name);
  print_digest("there", to.values());
  std::printf("%s, ", name);
  print_digest("and back", from.values());
}

// Every copy is in a stream of its destination's device, in both directions at the same time.
void both_ways(const char* name, const Side& one, const Side& other) {
  Gate gate(one);
  for (int i = 0; i < kStreams; ++i) {
    const Side& from = i % 2 ? one : other;
    const Side& to = i % 2 ? other : one;
    from.use();
    fill<<<1, 128, 0, from.stream(i)>>>(from.words(i), i);
    CUDA(cudaEventRecord(from.event(i), from.stream(i)));
    to.use();
    CUDA(cudaStreamWaitEvent(to.stream(i), from.event(i)));
    to.take(from, i, to.stream(i));
    to.fetch(i);
  }
  gate.open();
  finish(one, other);
  std::printf("%s, ", name);
  print_digest("both ways", one.values());
  std::printf("%s, ", name);
  print_digest("fetched", other.fetched());
}

// One stream copies there and back, while more and more other streams have work that ends later.
void among_busy_streams(const Side& here, const Side& there) {
  for (int busy = 6; busy < 26; ++busy) {
    here.use();
    fill<<<1, 128, 0, here.stream(0)>>>(here.words(0), busy);
    Gate gate(here, 1, busy);
    fill<<<1, 128, 0, here.stream(0)>>>(here.words(0), busy * 100);
    there.take(here, 0, here.stream(0));
    here.take(there, 0, here.stream(0));
    std::this_thread::sleep_for(std::chrono::milliseconds(10));  // the copies begin, most likely
    gate.open();
    finish(here, there);
    CHECK(here.values()[1] == busy * 100u + 1);
  }
}

// Capturing streams have no work, and do not delay others.
void among_capturing_streams(const Side& here, const Side& there) {
  here.use();
  for (int i = 1; i < kStreams; ++i) {
    CUDA(cudaStreamBeginCapture(here.stream(i), cudaStreamCaptureModeRelaxed));
  }
  fill<<<1, 128, 0, here.stream(0)>>>(here.words(0), 5);
  there.take(here, 0, here.stream(0));
  CUDA(cudaStreamSynchronize(here.stream(0)));
  for (int i = 1; i < kStreams; ++i) {
    cudaGraph_t graph = nullptr;
    CUDA(cudaStreamEndCapture(here.stream(i), &graph));
    CUDA(cudaGraphDestroy(graph));
  }
  finish(here, there);
  CHECK(there.values()[1] == 6);
}

int main() {
  int count = 0, least = 0, greatest = 0;
  CUDA(cudaGetDeviceCount(&count));
  CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  const int second = count > 1 ? 1 : 0;
  for (const auto& [name, priority] :
       {std::pair("least", least), std::pair("greatest", greatest)}) {
    const Side one(0, priority), other(second, priority);
    copies(name, one, other);
    round_trips(name, one, other);
    both_ways(name, one, other);
    among_busy_streams(one, other);
    among_capturing_streams(one, other);
  }
  return 0;
}
