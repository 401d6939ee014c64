// The shortest time of a copy between two GPUs over sockets: two processes with a GPU each, which
// only copy out of one GPU, through the sockets and into the other. With --gpus destination or
// --gpus source, the other end is plain memory: this is the shortest time of a program's copy to or
// from a remote GPU.
//
//   staged_sockets [--streams 4] [--rounds 20] [--most BYTES] [--gpus both|source|destination]
//
// Each chunk is cut over the streams (parts of 32 KB at least). A thread for each end of a stream
// polls for bytes to send or to receive. The processes report in shared memory which chunks are
// ready, have landed or are free again; this costs less than any message. Each process cycles
// through its 32 MB of staging memory. Without the GPUs, the same threads carry the same chunks
// from memory to memory (`plain`). Sockets get a copy of the bytes, or their pages (vmsplice,
// splice).
//
// Prints, for each size, the median of single copies and the time per copy of a train, in
// microseconds, each with its best chunk, and the same for `plain`. A p marks figures for which
// pages were better. An engine that stages in host memory and uses as many sockets can make a
// single copy faster than this program only with better chunks and parts. Trains of such an engine
// have taken 10 % less time than here: not all of its threads poll without pause.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include <arpa/inet.h>
#include <cuda_runtime.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../cuda_bench.h"

namespace {

constexpr size_t kStagingBytes = 32u << 20;
constexpr size_t kLeastChunk = 32u << 10;
constexpr size_t kMostChunk = 8u << 20;
constexpr size_t kLeastPart = 32u << 10;
constexpr size_t kLeastBytes = 64u << 10;  // of a copy
constexpr size_t kEvents = 64;
constexpr int kMostStreams = 16;

[[noreturn]] void die(const char* what) {
  std::perror(what);
  std::_Exit(1);
}

template <typename Ready>
void until(const Ready& ready) {
  for (int spins = 0; !ready(); ++spins) {
    spins < 4096 ? __builtin_ia32_pause() : std::this_thread::yield();
  }
}

// Several copies of one size, one after the other, cut into chunks.
struct Run {
  size_t bytes = 0;  // of a copy
  size_t chunk = 0;
  size_t copies = 0;
  bool gpus = true;
  bool pages = false;

  size_t chunks_of_copy() const { return (bytes + chunk - 1) / chunk; }
  size_t chunks() const { return copies * chunks_of_copy(); }
  size_t offset(size_t i) const { return i % chunks_of_copy() * chunk; }
  size_t size(size_t i) const { return std::min(chunk, bytes - offset(i)); }
  size_t places() const { return kStagingBytes / chunk; }
  size_t place(size_t i) const { return i % places() * chunk; }
};

struct alignas(64) Counter {
  std::atomic<size_t> value{0};
};

// Shared by the two processes. Counters count chunks of the run.
struct Shared {
  std::atomic<bool> destination_ready{false};
  std::atomic<bool> over{false};
  Run run;                             // published by `asked`
  alignas(64) std::atomic<int> asked;  // runs
  Counter ready;                       // chunks that can be sent
  Counter received[kMostStreams];
  Counter landed;
};

char* map(size_t bytes, int kind) {
  void* memory =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, kind | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) die("staged_sockets: mmap");
  return static_cast<char*>(memory);
}

constexpr int kNoGpu = -1;

// One process: its GPU or none, its staging memory and its ends of the streams.
class End {
 public:
  End(int device, std::vector<int> sockets, Shared& shared, size_t most_bytes)
      : sockets_(std::move(sockets)),
        pipes_(sockets_.size()),
        shared_(shared),
        has_gpu_(device != kNoGpu) {
    for (auto& pipe : pipes_) {
      if (::pipe(pipe.data()) != 0) die("staged_sockets: pipe");
    }
    staging_ = map(kStagingBytes, MAP_PRIVATE);
    (void)::madvise(staging_, kStagingBytes, MADV_HUGEPAGE);
    std::memset(staging_, 1, kStagingBytes);
    if (!has_gpu_) return;
    CHECK(cudaSetDevice(device));
    CHECK(cudaMalloc(&memory_, most_bytes));
    CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    for (cudaEvent_t& event : events_) {
      CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    }
    CHECK(cudaHostRegister(staging_, kStagingBytes, cudaHostRegisterDefault));
  }
  void start(void (End::*threads)(int)) {
    for (int i = 0; i < streams(); ++i) {
      threads_.emplace_back([this, threads, i] { (this->*threads)(i); });
    }
  }
  void join() {
    for (std::thread& thread : threads_) thread.join();
  }

  // Called on the source's main thread. Executes one run and returns the time per copy.
  double run_us(const Run& run) {
    shared_.ready.value = 0;
    shared_.landed.value = 0;
    for (Counter& received : shared_.received) received.value = 0;
    shared_.run = run;
    const Clock::time_point begin = Clock::now();
    ++shared_.asked;
    copy_chunks(
        run, cudaMemcpyDeviceToHost, [&] { return shared_.landed.value + run.places(); },
        shared_.ready);
    until([&] { return shared_.landed.value == run.chunks(); });
    const double us = us_since(begin) / static_cast<double>(run.copies);
    // A sending thread without a part of the last chunk may not have finished the run yet.
    until([&] { return sent_runs_ == static_cast<size_t>(shared_.asked * streams()); });
    return us;
  }

  // Called on the destination's main thread.
  void land_runs() {
    for (int runs = 0; next_run(&runs);) {
      copy_chunks(
          shared_.run, cudaMemcpyHostToDevice, [&] { return received(); }, shared_.landed);
    }
  }

  void send_parts(int stream) {
    for (int runs = 0; next_run(&runs);) {
      const Run run = shared_.run;
      for (size_t i = 0; i < run.chunks(); ++i) {
        until([&] { return shared_.ready.value > i; });
        const Part part = part_of(run, i, stream);
        for (size_t at = 0; at < part.bytes;) {
          char* const data = staging_ + run.place(i) + part.begin + at;
          at += run.pages ? send_pages(stream, data, part.bytes - at)
                          : send_copy(stream, data, part.bytes - at);
        }
      }
      ++sent_runs_;
    }
  }

  void receive_parts(int stream) {
    for (int runs = 0; next_run(&runs);) {
      const Run run = shared_.run;
      for (size_t i = 0; i < run.chunks(); ++i) {
        const Part part = part_of(run, i, stream);
        for (size_t at = 0; at < part.bytes;) {
          const ssize_t received =
              ::recv(sockets_[stream], staging_ + run.place(i) + part.begin + at, part.bytes - at,
                     MSG_DONTWAIT);
          if (received > 0) {
            at += static_cast<size_t>(received);
          } else if (received < 0 && errno == EAGAIN) {
            for (int pauses = 0; pauses < 64; ++pauses) __builtin_ia32_pause();
          } else {
            die("staged_sockets: recv");
          }
        }
        shared_.received[stream].value = i + 1;
      }
    }
  }

 private:
  struct Part {
    size_t begin = 0;
    size_t bytes = 0;
  };

  int streams() const { return static_cast<int>(sockets_.size()); }
  size_t send_copy(int stream, const char* data, size_t bytes) const {
    const ssize_t sent = ::send(sockets_[stream], data, bytes, MSG_NOSIGNAL);
    if (sent <= 0) die("staged_sockets: send");
    return static_cast<size_t>(sent);
  }
  size_t send_pages(int stream, char* data, size_t bytes) const {
    const auto [out, in] = pipes_[stream];
    const iovec memory{data, bytes};
    const ssize_t taken = ::vmsplice(in, &memory, 1, 0);
    if (taken <= 0) die("staged_sockets: vmsplice");
    for (ssize_t left = taken; left > 0;) {
      const unsigned flags = static_cast<size_t>(taken) < bytes ? SPLICE_F_MORE : 0;
      const ssize_t sent = ::splice(out, nullptr, sockets_[stream], nullptr, left, flags);
      if (sent <= 0) die("staged_sockets: splice");
      left -= sent;
    }
    return static_cast<size_t>(taken);
  }
  // The part of a chunk that a stream carries. Small chunks use the streams in turn.
  Part part_of(const Run& run, size_t chunk, int stream) const {
    const size_t bytes = run.size(chunk), all = sockets_.size();
    const size_t parts = std::clamp<size_t>(bytes / kLeastPart, 1, all);
    const size_t index = (static_cast<size_t>(stream) + chunk) % all;
    if (index >= parts) return {};
    const size_t begin = bytes * index / parts;
    return {begin, bytes * (index + 1) / parts - begin};
  }
  bool next_run(int* runs) const {
    until([&] { return shared_.asked != *runs || shared_.over; });
    ++*runs;
    return !shared_.over;
  }
  size_t received() const {
    size_t least = SIZE_MAX;
    for (int i = 0; i < streams(); ++i) {
      least = std::min<size_t>(least, shared_.received[i].value);
    }
    return least;
  }
  // Copies all chunks of the run out of the GPU or into it. `limit` returns how many chunks may be
  // queued so far; `copied` counts those that have finished.
  template <typename Limit>
  void copy_chunks(const Run run, cudaMemcpyKind kind, const Limit& limit, Counter& copied) {
    const bool uses_gpu = run.gpus && has_gpu_;
    for (size_t queued = 0, done = 0; done < run.chunks();) {
      if (queued < std::min({run.chunks(), done + kEvents, limit()})) {
        if (uses_gpu) queue(run, queued, kind);
        ++queued;
      }
      const size_t before = done;
      while (done < queued && (!uses_gpu || over(done))) ++done;
      if (done != before) copied.value = done;
      if (done == queued) std::this_thread::yield();
    }
  }
  void queue(const Run& run, size_t chunk, cudaMemcpyKind kind) {
    char* const staged = staging_ + run.place(chunk);
    char* const memory = memory_ + run.offset(chunk);
    const bool out = kind == cudaMemcpyDeviceToHost;
    CHECK(cudaMemcpyAsync(out ? staged : memory, out ? memory : staged, run.size(chunk), kind,
                          stream_));
    CHECK(cudaEventRecord(events_[chunk % kEvents], stream_));
  }
  bool over(size_t chunk) const {
    const cudaError_t result = cudaEventQuery(events_[chunk % kEvents]);
    if (result == cudaErrorNotReady) return false;
    CHECK(result);
    return true;
  }

  const std::vector<int> sockets_;
  std::vector<std::array<int, 2>> pipes_;  // per stream, for pages: read end, write end
  Shared& shared_;
  const bool has_gpu_;
  char* memory_ = nullptr;
  char* staging_ = nullptr;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t events_[kEvents];
  std::atomic<size_t> sent_runs_{0};  // by all threads together
  std::vector<std::thread> threads_;
};

// Makes pairs of connected sockets over the loopback device.
void connect_streams(int count, std::vector<int>* senders, std::vector<int>* receivers) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* const where = reinterpret_cast<sockaddr*>(&address);
  socklen_t length = sizeof address;
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  if (::bind(listener, where, length) != 0 || ::listen(listener, count) != 0 ||
      ::getsockname(listener, where, &length) != 0) {
    die("staged_sockets: listen");
  }
  for (int i = 0; i < count; ++i) {
    senders->push_back(::socket(AF_INET, SOCK_STREAM, 0));
    if (::connect(senders->back(), where, length) != 0) die("staged_sockets: connect");
    receivers->push_back(::accept(listener, nullptr, nullptr));
    const int on = 1;
    if (::setsockopt(senders->back(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0) {
      die("staged_sockets: TCP_NODELAY");
    }
  }
  ::close(listener);
}

struct Best {
  double us = 1e18;
  size_t chunk = 0;
  bool pages = false;
  void take(std::vector<double>& times, const Run& run) {
    const double other = median(times);
    if (other < us) *this = {other, run.chunk, run.pages};
  }
};

void measure(End& source, size_t bytes, size_t rounds) {
  Best single[2], train[2];  // by Run::gpus
  for (size_t chunks = 1; chunks <= 64; chunks *= 2) {
    const size_t chunk = (bytes / chunks + 4095) / 4096 * 4096;
    if (chunk < kLeastChunk || chunk > kMostChunk) continue;
    const size_t copies = std::clamp<size_t>((64u << 20) / bytes, 4, 200);
    for (const bool pages : {false, true}) {
      std::vector<double> singles[2], trains[2];
      const Run one{bytes, chunk, 1, true, pages};
      for (size_t round = 0; round < rounds; ++round) {
        for (const bool gpus : {false, true}) {
          singles[gpus].push_back(source.run_us({bytes, chunk, 1, gpus, pages}));
          if (round % 4 == 0) {
            trains[gpus].push_back(source.run_us({bytes, chunk, copies, gpus, pages}));
          }
        }
      }
      for (const bool gpus : {false, true}) {
        single[gpus].take(singles[gpus], one);
        train[gpus].take(trains[gpus], one);
      }
    }
  }
  std::printf("%10zu", bytes);
  for (const Best* best : {&single[0], &single[1], &train[0], &train[1]}) {
    std::printf(" %9.1f %8zu%c", best->us, best->chunk, best->pages ? 'p' : ' ');
  }
  std::printf("\n");
  std::fflush(stdout);
}

struct Options {
  int streams = 4, rounds = 20, most = 64 << 20;
  std::string gpus = "both";

  bool parse(int argc, char** argv) {
    for (int i = 1; i < argc; i += 2) {
      const std::string name = argv[i];
      if (i + 1 == argc) return false;
      if (name == "--gpus") {
        gpus = argv[i + 1];
        continue;
      }
      int* const value = name == "--streams"  ? &streams
                         : name == "--rounds" ? &rounds
                         : name == "--most"   ? &most
                                              : nullptr;
      if (!value) return false;
      *value = std::atoi(argv[i + 1]);
    }
    return streams >= 1 && streams <= kMostStreams && rounds >= 1 && most >= 1 &&
           (gpus == "both" || gpus == "source" || gpus == "destination");
  }
};

}  // namespace

int main(int argc, char** argv) {
  Options options;
  if (!options.parse(argc, argv)) {
    std::fprintf(stderr,
                 "usage: staged_sockets [--streams 4] [--rounds 20] [--most BYTES]"
                 " [--gpus both|source|destination]\n");
    return 2;
  }
  const auto most_bytes = static_cast<size_t>(options.most);
  auto* shared = new (map(sizeof(Shared), MAP_SHARED)) Shared;
  std::vector<int> senders, receivers;
  connect_streams(options.streams, &senders, &receivers);
  const pid_t child = ::fork();  // before CUDA is used
  if (child < 0) die("staged_sockets: fork");
  if (child == 0) {
    End destination(options.gpus == "source" ? kNoGpu : destination_device(), receivers, *shared,
                    most_bytes);
    destination.start(&End::receive_parts);
    shared->destination_ready = true;
    destination.land_runs();
    destination.join();
    return 0;
  }
  // If the destination ends, it has printed the reason. This process then ends too, because it
  // would wait without end.
  ::signal(SIGCHLD, [](int) { std::_Exit(1); });
  End source(options.gpus == "destination" ? kNoGpu : 0, senders, *shared, most_bytes);
  source.start(&End::send_parts);
  until([&] { return shared->destination_ready.load(); });

  std::printf("%10s %19s %19s %19s %19s   us, chunk\n", "bytes", "plain single", "staged single",
              "plain train", "staged train");
  for (size_t bytes = kLeastBytes; bytes <= most_bytes; bytes *= 2) {
    measure(source, bytes, static_cast<size_t>(options.rounds));
    if (bytes == (128u << 10) && most_bytes >= 200'000) {
      measure(source, 200'000, static_cast<size_t>(options.rounds));
    }
  }
  ::signal(SIGCHLD, SIG_DFL);
  shared->over = true;
  source.join();
  ::waitpid(child, nullptr, 0);
  return 0;
}
