// Latency and bandwidth of cudaMemcpyPeer by size, as CSV.
//
// A plain CUDA program. Natively it measures CUDA's own copy (--peer-access off|on). Under
// LD_PRELOAD=librcuda.so, with two servers in RCUDA_DEVICES, it measures rcuda's copy, with the
// strategy in RCUDA_P2P_STRATEGY. run.py alternates them and draws the figures.
//
// For every size: the first and the second copy; the median of single blocking copies; the time per
// copy of a train in one stream. All bytes are compared after the first copy, after the second and
// after the train, and the destination is overwritten before each of these. So both devices are
// idle for some time before the first and the second copy: at least while the host compares bytes.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include <cuda_runtime.h>

#include "../cuda_bench.h"

namespace {

struct Options {
  int from = 0;
  int to = 1;
  uint64_t min_bytes = 4;
  uint64_t max_bytes = 256ull << 20;
  double seconds_per_size = 0.2;
  double settle_seconds = 0;  // time without work before the first copy
  bool peer_access = false;
  bool header = true;
  std::string label = "native";
};

uint64_t parse_size(const char* text) {
  char* end = nullptr;
  uint64_t value = std::strtoull(text, &end, 10);
  if (*end == 'K') value <<= 10;
  if (*end == 'M') value <<= 20;
  if (*end == 'G') value <<= 30;
  return value;
}

[[noreturn]] void usage() {
  std::fprintf(
      stderr,
      "usage: p2p [--from DEVICE] [--to DEVICE] [--min BYTES] [--max BYTES]\n"
      "           [--seconds PER_SIZE] [--settle SECONDS] [--peer-access off|on] [--label TEXT]\n"
      "           [--no-header]\n");
  std::exit(2);
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--no-header") {
      options.header = false;
      continue;
    }
    if (i + 1 == argc) usage();
    const char* value = argv[++i];
    if (name == "--from") {
      options.from = std::atoi(value);
    } else if (name == "--to") {
      options.to = std::atoi(value);
    } else if (name == "--min") {
      options.min_bytes = parse_size(value);
    } else if (name == "--max") {
      options.max_bytes = parse_size(value);
    } else if (name == "--seconds") {
      options.seconds_per_size = std::atof(value);
    } else if (name == "--settle") {
      options.settle_seconds = std::atof(value);
    } else if (name == "--peer-access") {
      options.peer_access = std::strcmp(value, "on") == 0;
    } else if (name == "--label") {
      options.label = value;
    } else {
      usage();
    }
  }
  return options;
}

class Pair {
 public:
  explicit Pair(const Options& options) : options_(options) {
    CHECK(cudaSetDevice(options.to));
    CHECK(cudaMalloc(&destination_, options.max_bytes));
    CHECK(cudaSetDevice(options.from));
    CHECK(cudaMalloc(&source_, options.max_bytes));
    CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    host_.resize(options.max_bytes);
    check_.resize(options.max_bytes);
    uint64_t state = 1;
    for (size_t i = 0; i < host_.size(); ++i) {
      state = state * 6364136223846793005ull + 1442695040888963407ull;
      host_[i] = static_cast<uint8_t>(state >> 56);
    }
    CHECK(cudaMemcpy(source_, host_.data(), host_.size(), cudaMemcpyHostToDevice));
  }

  void blocking(uint64_t bytes) {
    CHECK(cudaMemcpyPeer(destination_, options_.to, source_, options_.from, bytes));
    // The call itself may return before the copy is over.
    CHECK(cudaDeviceSynchronize());
  }
  double train_us(uint64_t bytes, int copies) {
    const Clock::time_point begin = Clock::now();
    for (int i = 0; i < copies; ++i) {
      CHECK(cudaMemcpyPeerAsync(destination_, options_.to, source_, options_.from, bytes, stream_));
    }
    CHECK(cudaStreamSynchronize(stream_));
    return us_since(begin) / copies;
  }
  // Times one blocking copy. Overwrites the destination before the copy and compares it afterwards.
  double checked_us(uint64_t bytes) {
    spoil(bytes);
    const Clock::time_point begin = Clock::now();
    blocking(bytes);
    const double us = us_since(begin);
    compare(bytes);
    return us;
  }
  void spoil(uint64_t bytes) {
    CHECK(cudaSetDevice(options_.to));
    CHECK(cudaMemset(destination_, 0xa5, bytes));
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaSetDevice(options_.from));
    CHECK(cudaDeviceSynchronize());
  }
  void compare(uint64_t bytes) {
    CHECK(cudaMemcpy(check_.data(), destination_, bytes, cudaMemcpyDeviceToHost));
    if (std::memcmp(check_.data(), host_.data(), bytes) != 0) {
      std::fprintf(stderr, "p2p: wrong contents after a copy of %llu bytes\n",
                   static_cast<unsigned long long>(bytes));
      std::exit(1);
    }
  }

 private:
  const Options options_;
  void* source_ = nullptr;
  void* destination_ = nullptr;
  cudaStream_t stream_ = nullptr;
  std::vector<uint8_t> host_;
  std::vector<uint8_t> check_;
};

void set_peer_access(const Options& options) {
  if (!options.peer_access) return;
  int possible = 0;
  CHECK(cudaDeviceCanAccessPeer(&possible, options.from, options.to));
  if (possible == 0) {
    std::fprintf(stderr, "p2p: device %d cannot access device %d\n", options.from, options.to);
    std::exit(3);
  }
  CHECK(cudaSetDevice(options.from));
  CHECK(cudaDeviceEnablePeerAccess(options.to, 0));
  CHECK(cudaSetDevice(options.to));
  CHECK(cudaDeviceEnablePeerAccess(options.from, 0));
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  set_peer_access(options);
  Pair pair(options);
  std::this_thread::sleep_for(std::chrono::duration<double>(options.settle_seconds));
  if (options.header)
    std::printf("label,bytes,first_us,second_us,median_us,train_us,median_gbps,train_gbps\n");
  for (const uint64_t bytes : sizes_between(options.min_bytes, options.max_bytes)) {
    const double first_us = pair.checked_us(bytes);
    const double second_us = pair.checked_us(bytes);
    std::vector<double> times;
    const Clock::time_point start = Clock::now();
    while (times.size() < 5 ||
           (times.size() < 1000 && us_since(start) < options.seconds_per_size * 1e6)) {
      const Clock::time_point begin = Clock::now();
      pair.blocking(bytes);
      times.push_back(us_since(begin));
    }
    const double median_us = median(times);

    const int copies = static_cast<int>(
        std::min(1000.0, std::max(4.0, options.seconds_per_size * 1e6 / median_us)));
    pair.spoil(bytes);
    const double train_us = pair.train_us(bytes, copies);
    pair.compare(bytes);
    const double size = static_cast<double>(bytes);
    std::printf("%s,%llu,%.2f,%.2f,%.2f,%.2f,%.4f,%.4f\n", options.label.c_str(),
                static_cast<unsigned long long>(bytes), first_us, second_us, median_us, train_us,
                size / median_us * 1e-3, size / train_us * 1e-3);
    std::fflush(stdout);
  }
  return 0;
}
