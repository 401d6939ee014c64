// Measures how many streams can wait before one more stream makes no progress. Streams share a
// GPU's hardware queues, and the engine for copies between servers needs a free queue (docs/p2p.md,
// "Queues").
//
//   CUDA_DEVICE_MAX_CONNECTIONS=8 queues [--most STREAMS] [--patience MS]
//
// For each kind of work, prints how many streams must wait with such work until one more stream
// stops: a stream of the default priority, of the greatest priority, and in another context. The
// last line has the number for three lanes with eight copies each; the streams then wait with all
// kinds of work. -1: the stream never stops. A stream has stopped if its work, which takes some ten
// microseconds on an idle GPU, takes longer than --patience.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <cuda.h>
#include <cuda_runtime.h>

#include "../cuda_bench.h"

namespace {

constexpr size_t kBytes = 64 << 10;
enum Kind { kToHost, kToDevice, kWithinDevice, kFill, kWord, kKinds };
const char* const kNames[kKinds] = {"to host", "to device", "within device", "fill", "word"};

struct Memory {
  CUdeviceptr device = 0, host = 0, words = 0;
  volatile unsigned* gate = nullptr;  // the word for which streams wait: the first of `words`
};

void check(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  const char* name = "?";
  cuGetErrorName(result, &name);
  std::fprintf(stderr, "%s: %s\n", what, name);
  std::exit(1);
}

void queue(const Memory& memory, Kind kind, CUstream stream) {
  switch (kind) {
    case kToHost:
      return check(cuMemcpyAsync(memory.host, memory.device, kBytes, stream), kNames[kind]);
    case kToDevice:
      return check(cuMemcpyAsync(memory.device, memory.host, kBytes, stream), kNames[kind]);
    case kWithinDevice:
      return check(cuMemcpyAsync(memory.device, memory.device + kBytes, kBytes, stream),
                   kNames[kind]);
    case kFill:
      return check(cuMemsetD8Async(memory.device, 1, kBytes, stream), kNames[kind]);
    default:
      return check(cuStreamWriteValue32(stream, memory.words + 64, 1, 0), kNames[kind]);
  }
}

CUstream make_stream(int priority) {
  CUstream stream = nullptr;
  check(cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, priority),
        "cuStreamCreateWithPriority");
  return stream;
}

double patience_us = 5000;

bool gets_on(CUstream stream) {
  const auto begin = Clock::now();
  do {
    const CUresult result = cuStreamQuery(stream);
    if (result == CUDA_SUCCESS) return true;
    if (result != CUDA_ERROR_NOT_READY) check(result, "a stream's work");
  } while (us_since(begin) < patience_us);
  return false;
}

// Up to `most` streams that wait for the gate and have work after the wait.
class Waiting {
 public:
  // Creates all streams now: no stream can be created while all queues for kernels wait.
  Waiting(const Memory& memory, int most) : memory_(memory) {
    for (int i = 0; i < most; ++i) streams_.push_back(make_stream(0));
  }
  ~Waiting() {
    *memory_.gate = 1;
    check(cuCtxSynchronize(), "cuCtxSynchronize");
    for (CUstream stream : streams_) cuStreamDestroy(stream);
    *memory_.gate = 0;
  }
  int count() const { return static_cast<int>(waiting_); }
  bool full() const { return waiting_ == streams_.size(); }
  void add(const std::vector<Kind>& kinds) {
    CUstream stream = streams_[waiting_++];
    check(cuStreamWaitValue32(stream, memory_.words, 1, CU_STREAM_WAIT_VALUE_GEQ),
          "cuStreamWaitValue32");
    for (Kind kind : kinds) queue(memory_, kind, stream);
  }

 private:
  const Memory& memory_;
  std::vector<CUstream> streams_;
  size_t waiting_ = 0;
};

// Returns the number of waiting streams at which a stream of `context` with this kind of work makes
// no more progress; -1 if it always makes progress.
int streams_until_stuck(const Memory& memory, Kind kind, CUcontext own, CUcontext context,
                        int priority, int most) {
  check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
  CUstream stream = make_stream(priority);
  check(cuCtxSetCurrent(own), "cuCtxSetCurrent");
  int found = -1;
  {
    Waiting waiting(memory, most);
    while (true) {
      check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
      queue(memory, kind, stream);
      if (!gets_on(stream)) found = waiting.count();
      check(cuCtxSetCurrent(own), "cuCtxSetCurrent");
      if (found >= 0 || waiting.full()) break;
      waiting.add({kind});
    }
  }
  check(cuStreamSynchronize(stream), "cuStreamSynchronize");
  cuStreamDestroy(stream);
  return found;
}

// As streams_until_stuck(), for three busy streams like the lanes of the engine.
int streams_until_a_lane_is_stuck(const Memory& memory, int priority, int most) {
  const std::vector<Kind> kinds = {kToHost, kToDevice, kWithinDevice};
  std::vector<CUstream> lanes;
  for (size_t i = 0; i < kinds.size(); ++i) lanes.push_back(make_stream(priority));
  int found = -1;
  {
    Waiting waiting(memory, most);
    while (true) {
      for (int round = 0; round < 100 && found < 0; ++round) {
        for (int i = 0; i < 8; ++i) {
          for (size_t lane = 0; lane < lanes.size(); ++lane) {
            queue(memory, kinds[lane], lanes[lane]);
          }
        }
        for (CUstream lane : lanes) {
          if (!gets_on(lane)) found = waiting.count();
        }
      }
      if (found >= 0 || waiting.full()) break;
      waiting.add({kToHost, kToDevice, kWithinDevice, kFill});
    }
  }
  for (CUstream lane : lanes) cuStreamDestroy(lane);
  return found;
}

}  // namespace

int main(int argc, char** argv) {
  int most = 40;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--most") == 0) most = std::atoi(argv[i + 1]);
    if (std::strcmp(argv[i], "--patience") == 0) patience_us = std::atof(argv[i + 1]) * 1000;
  }
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  Memory memory;
  void *host = nullptr, *words = nullptr, *device = nullptr;
  CHECK(cudaHostAlloc(&words, 4096, cudaHostAllocMapped | cudaHostAllocPortable));
  CHECK(cudaHostAlloc(&host, kBytes, cudaHostAllocPortable));
  CHECK(cudaMalloc(&device, 2 * kBytes));
  std::memset(words, 0, 4096);
  memory.device = reinterpret_cast<CUdeviceptr>(device);
  memory.host = reinterpret_cast<CUdeviceptr>(host);
  memory.words = reinterpret_cast<CUdeviceptr>(words);
  memory.gate = static_cast<volatile unsigned*>(words);
  int least = 0, greatest = 0;
  check(cuCtxGetStreamPriorityRange(&least, &greatest), "cuCtxGetStreamPriorityRange");
  CUcontext own = nullptr, other = nullptr;
  CUdevice ordinal = 0;
  check(cuCtxGetCurrent(&own), "cuCtxGetCurrent");
  check(cuCtxGetDevice(&ordinal), "cuCtxGetDevice");
  CUctxCreateParams parameters{};
  check(cuCtxCreate(&other, &parameters, 0, ordinal), "cuCtxCreate");

  const char* connections = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  std::printf("CUDA_DEVICE_MAX_CONNECTIONS: %s\n%-14s %8s %9s %9s\n",
              connections ? connections : "not set", "", "default", "greatest", "context");
  for (int kind = 0; kind < kKinds; ++kind) {
    const auto stuck = [&](CUcontext context, int priority) {
      return streams_until_stuck(memory, static_cast<Kind>(kind), own, context, priority, most);
    };
    std::printf("%-14s %8d %9d %9d\n", kNames[kind], stuck(own, least), stuck(own, greatest),
                stuck(other, least));
  }
  std::printf("%-14s %18d\n", "three lanes", streams_until_a_lane_is_stuck(memory, greatest, most));
  return 0;
}
