// The peer-to-peer engine between two processes of one host, each with its own GPU, without client
// and server. Shows the performance of the engine itself, over each medium.
//
//   engine_pair [--medium shm|tcp|late-tcp] [--devices 0,1] [--min 4K] [--max 256M]
//               [--driver auto] [--strategy auto,v3b,v4b:1Mx4/shm,...] [--rounds N]
//               [--measure on|off] [--streams on|off] [--sizes 64K,1M,...]
//               [--passes start,settled,loaded] [--destination NAME=VALUE]
//               [--seconds S]
//
// A strategy is a value of RCUDA_P2P_STRATEGY, optionally followed by a slash and a value of
// RCUDA_P2P_PATH. With --measure off no leg is measured. --seconds: for how long single copies of
// a size run, by default 0.1.
//
// A pass is one turn through all sizes:
//   start    right after the peers are open, for a fifth of the time: legs are measured meanwhile
//   settled  after a pause in which all legs are measured; at least 16 copies of a size
//   loaded   while both workers copy 1 MB to and from host memory without pause in other streams,
//            as programs do, so that a peer copy has half of each bus
// --destination sets an environment variable in the destination's process only, for example to give
// its softgpu device another link.
//
// Each copy is in a stream of the source, where cudaMemcpyPeerAsync puts it, and is timed from the
// call until the stream is idle again. CSV: the first copy; the median of all single copies; the
// time per copy of a train; the bandwidths of these two; the mean of all single copies; the median
// of their last half.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/measure.h"
#include "common/base/cpu_pause.h"
#include "common/base/log.h"
#include "common/config/command_line.h"
#include "common/transport/link.h"
#include "p2p/engine/engine.h"
#include "server/driver/driver_loader.h"
#include "server/executor/peers/cuda_device_ops.h"
#include "tests/support/engine_open.h"
#include "tests/support/link_pair.h"

namespace {

using namespace rcuda;

constexpr int kAhead = 8;  // halves that the destination starts before the source's halves
constexpr int kFirst = 3;  // copies whose times decide how many follow

struct Options {
  std::string medium = "shm";
  int devices[2] = {0, 1};
  uint64_t min_bytes = 4;
  uint64_t max_bytes = 256ull << 20;
  std::string driver = "auto";
  std::vector<std::string> strategies{"auto"};
  int rounds = 1;
  bool measure = true;
  bool streams = true;
  double seconds_per_size = 0.1;
  std::vector<uint64_t> sizes;
  std::vector<std::string> passes{"settled"};
  std::vector<std::string> destination;  // NAME=VALUE
};

[[noreturn]] void die(const std::string& why) {
  std::fprintf(stderr, "engine_pair: %s\n", why.c_str());
  std::_Exit(1);
}
void check(const Status& status) {
  if (!status.ok()) die(status.message());
}
void check(CUresult result, const char* what) {
  if (result != CUDA_SUCCESS) die(std::string(what) + " returned " + std::to_string(result));
}

// Exits if the arguments request help or are invalid.
Options parse(int argc, char** argv) {
  Options options;
  std::vector<int> devices{options.devices[0], options.devices[1]};
  std::vector<std::string> media;
  for (const transport::Medium& medium : transport::media()) media.push_back(medium.name());
  std::string streams = "on";
  std::string measure = "on";
  config::CommandLine line("", "Copies between the engines of two workers by size, as CSV");
  line.option("--medium", &options.medium).one_of(media);
  line.option("--devices", &devices).takes(2).separated_by(',');
  line.option("--min", &options.min_bytes).as_bytes();
  line.option("--max", &options.max_bytes).as_bytes();
  line.option("--driver", &options.driver);
  line.option("--streams", &streams).one_of({"on", "off"});
  line.option("--measure", &measure).one_of({"on", "off"});
  line.option("--rounds", &options.rounds).within(1, 1e6);
  line.option("--seconds", &options.seconds_per_size).within(1e-6, 1e6);
  line.option("--sizes", &options.sizes).separated_by(',').as_bytes();
  line.option("--passes", &options.passes).separated_by(',').one_of({"start", "settled", "loaded"});
  line.option("--destination", &options.destination).check([](const std::string& text) {
    return text.find('=') != std::string::npos
               ? Status()
               : Status(Code::kInvalidArgument, "--destination: NAME=VALUE is expected");
  });
  line.option("--strategy", &options.strategies).separated_by(',');
  if (const std::optional<int> status = line.parse(argc, argv)) std::exit(*status);
  options.streams = streams == "on";
  options.measure = measure == "on";
  std::copy(devices.begin(), devices.end(), options.devices);
  if (!options.sizes.empty()) {
    options.max_bytes = *std::max_element(options.sizes.begin(), options.sizes.end());
  }
  return options;
}

std::vector<uint64_t> sizes_of(const Options& options) {
  if (!options.sizes.empty()) return options.sizes;
  return sizes_between(options.min_bytes, options.max_bytes);
}

p2p::SessionToken token() {
  p2p::SessionToken token;
  token.fill(std::byte{42});
  return token;
}

// One of the two processes: driver, memory, and an engine per strategy.
class Worker {
 public:
  Worker(const Options& options, int index, int partner)
      : options_(options), index_(index), partner_(partner) {
    Result<server::LoadedDriver> driver = server::load_driver(options.driver);
    if (!driver) die(driver.status().message());
    driver_ = std::move(*driver);
    const auto& table = driver_.table;
    check(table.cuDeviceGet(&device_, options.devices[index]), "cuDeviceGet");
    check(table.cuDevicePrimaryCtxRetain(&context_, device_), "cuDevicePrimaryCtxRetain");
    check(table.cuCtxSetCurrent(context_), "cuCtxSetCurrent");
    check(table.cuMemAlloc_v2(&memory_, options.max_bytes), "cuMemAlloc");
    check(table.cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    host_.resize(options.max_bytes);
    uint64_t state = 7;
    for (auto& byte : host_) {
      state = state * 6364136223846793005ull + 1442695040888963407ull;
      byte = static_cast<std::byte>(state >> 56);
    }
    if (index == 0) {
      check(table.cuMemcpyHtoD_v2(memory_, host_.data(), host_.size()), "cuMemcpyHtoD");
    }
  }

  void open(const std::string& strategy, std::unique_ptr<transport::Link> link) {
    Result<std::unique_ptr<server::CudaDeviceOps>> ops = server::CudaDeviceOps::create(
        driver_.table,
        {{{device_, context_}},
         [](CUresult result) { die("a copy failed with " + std::to_string(result)); },
         {},
         &names_});
    if (!ops) die(ops.status().message());
    ops_ = std::move(*ops);
    p2p::EngineOptions engine_options;
    const size_t slash = strategy.find('/');
    const auto planner = p2p::parse_planner_options(
        strategy.substr(0, slash),
        slash == std::string::npos ? std::string() : strategy.substr(slash + 1));
    if (!planner) die(planner.status().context());
    engine_options.planner = *planner;
    engine_options.host_name = "node" + std::to_string(index_);
    engine_options.measure = options_.measure;
    auto engine = p2p::Engine::create(*ops_, engine_options);
    if (!engine) die(engine.status().context());
    engine_ = *std::move(engine);
    const auto peer = static_cast<p2p::PeerId>(1 - index_);
    engine_->attach(peer, std::move(link), token(), index_ == 0);
    if (!testing::wait_until_open(*engine_, peer, std::chrono::seconds(60))) {
      die("the peer did not open");
    }
    barrier();
  }
  // Waits 1.5 s, in which the engines measure their legs.
  void settle() {
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    barrier();
  }
  void close() {
    barrier();
    engine_.reset();
    ops_.reset();
    barrier();
  }

  // Keeps both directions of the device's bus busy with other work of the program, until unload().
  void load() {
    barrier();
    loading_ = true;
    for (const bool to_device : {true, false}) {
      load_.emplace_back([this, to_device] { keep_busy(to_device); });
    }
    barrier();
  }
  void unload() {
    barrier();
    loading_ = false;
    for (std::thread& thread : load_) thread.join();
    load_.clear();
    barrier();
  }

  // The source's part of one size: single copies for about `seconds`, but from `least` to 300 of
  // them, then a train.
  void send(const std::string& label, uint64_t bytes, double seconds, int least) {
    std::vector<double> times;
    const auto single = [&](int copies) {
      barrier();
      over_ = 0;
      for (int i = 0; i < copies; ++i) {
        const Clock::time_point begin = Clock::now();
        start(bytes, true);
        wait(i + 1);
        times.push_back(us_since(begin));
      }
      barrier();
    };
    single(kFirst);
    const double enough = seconds * 1e6 / *std::min_element(times.begin(), times.end());
    const int copies = static_cast<int>(std::clamp(enough, static_cast<double>(least), 300.0));
    tell(copies);
    single(copies);
    // A train: each copy is issued while the previous copy runs.
    barrier();
    const Clock::time_point begin = Clock::now();
    over_ = 0;
    for (int i = 0; i < copies; ++i) start(bytes, true);
    wait(copies);
    const double train = us_since(begin) / copies;
    barrier();
    print(label, static_cast<double>(bytes), times, train);
  }
  // The destination's part: starts its halves before the source's halves, then compares the bytes.
  // Starts at most kAhead halves in advance, because the source's engine checks each announced half
  // in every round.
  void receive(uint64_t bytes) {
    const auto& table = driver_.table;
    check(table.cuMemsetD8_v2(memory_, 0x5a, bytes), "cuMemsetD8");
    check(table.cuStreamSynchronize(nullptr), "cuStreamSynchronize");
    int copies = kFirst;
    for (int part = 0; part < 3; ++part) {
      if (part == 1) copies = told();
      over_ = 0;
      int started = 0;
      const auto keep_ahead = [&] {
        while (started < std::min(copies, over_ + kAhead)) {
          start(bytes, false);
          ++started;
        }
      };
      keep_ahead();
      barrier();
      while (over_ < copies) {
        keep_ahead();
        cpu_pause();
      }
      barrier();
    }
    std::vector<std::byte> seen(bytes);
    check(table.cuMemcpyDtoH_v2(seen.data(), memory_, bytes), "cuMemcpyDtoH");
    if (std::memcmp(seen.data(), host_.data(), bytes) != 0) {
      die("wrong contents after copies of " + std::to_string(bytes) + " bytes");
    }
  }
  void barrier() {
    char byte = 0;
    if (::write(partner_, &byte, 1) != 1 || ::read(partner_, &byte, 1) != 1)
      die("the other process has ended");
  }

 private:
  static void print(const std::string& label, double bytes, const std::vector<double>& times,
                    double train) {
    const double median_us = median(times);
    const auto half = times.begin() + static_cast<long>(times.size() / 2);
    const double mean =
        std::accumulate(times.begin(), times.end(), 0.0) / static_cast<double>(times.size());
    std::printf("%s,%.0f,%.2f,%.2f,%.2f,%.4f,%.4f,%.2f,%.2f\n", label.c_str(), bytes, times.front(),
                median_us, train, bytes / median_us * 1e-3, bytes / train * 1e-3, mean,
                median({half, times.end()}));
    std::fflush(stdout);
  }
  // Called by the source: sends the number of copies that follow to the destination.
  void tell(int copies) {
    if (::write(partner_, &copies, sizeof copies) != sizeof copies)
      die("the other process has ended");
  }
  int told() {
    int copies = 0;
    if (::read(partner_, &copies, sizeof copies) != sizeof copies)
      die("the other process has ended");
    return copies;
  }
  void keep_busy(bool to_device) {
    constexpr size_t kBytes = size_t{1} << 20;
    const auto& table = driver_.table;
    check(table.cuCtxSetCurrent(context_), "cuCtxSetCurrent");
    CUstream stream = nullptr;
    CUdeviceptr device = 0;
    void* host = nullptr;
    CUevent over[2] = {};
    check(table.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    check(table.cuMemAlloc_v2(&device, kBytes), "cuMemAlloc");
    check(table.cuMemHostAlloc(&host, kBytes, 0), "cuMemHostAlloc");
    for (CUevent& event : over) {
      check(table.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
    }
    // Two copies at a time, so the bus is never idle and no peer copy queues after more than two.
    for (int i = 0; loading_; i = 1 - i) {
      check(table.cuEventSynchronize(over[i]), "cuEventSynchronize");
      check(to_device ? table.cuMemcpyHtoDAsync_v2(device, host, kBytes, stream)
                      : table.cuMemcpyDtoHAsync_v2(host, device, kBytes, stream),
            "a copy of the load");
      check(table.cuEventRecord(over[i], stream), "cuEventRecord");
    }
    check(table.cuStreamSynchronize(stream), "cuStreamSynchronize");
    for (CUevent event : over) check(table.cuEventDestroy_v2(event), "cuEventDestroy");
    check(table.cuMemFreeHost(host), "cuMemFreeHost");
    check(table.cuMemFree_v2(device), "cuMemFree");
    check(table.cuStreamDestroy_v2(stream), "cuStreamDestroy");
  }
  // Waits until the stream is idle or, without streams, until `copies` copies have ended.
  void wait(int copies) {
    if (options_.streams) {
      check(driver_.table.cuStreamSynchronize(stream_), "cuStreamSynchronize");
    } else {
      while (over_ < copies) cpu_pause();
    }
  }
  void start(uint64_t bytes, bool outgoing) {
    p2p::PeerCopy copy;
    copy.id = ++id_;
    copy.peer = static_cast<p2p::PeerId>(1 - index_);
    copy.outgoing = outgoing;
    copy.memory = p2p::Shape::plain(memory_, bytes);
    if (outgoing && options_.streams)
      copy.stream = server::CudaDeviceOps::stream_ref(stream_, context_);
    copy.done = [this](const Status& status) {
      check(status);
      ++over_;
    };
    check(engine_->copy(std::move(copy)));
  }

  const Options& options_;
  const int index_;
  const int partner_;
  server::LoadedDriver driver_;
  CUdevice device_ = 0;
  CUcontext context_ = nullptr;
  CUdeviceptr memory_ = 0;
  CUstream stream_ = nullptr;
  std::vector<std::byte> host_;
  server::ExportedNames names_;
  std::unique_ptr<server::CudaDeviceOps> ops_;
  std::unique_ptr<p2p::Engine> engine_;
  std::atomic<int> over_ = 0;
  std::atomic<bool> loading_ = false;
  std::vector<std::thread> load_;
  uint64_t id_ = 0;
};

std::unique_ptr<transport::Link> make_link(const transport::Medium& medium, int control,
                                           int server_index, int listener) {
  transport::Bootstrap bootstrap;
  bootstrap.control = UniqueFd(control);
  bootstrap.server = server_index == 1;
  bootstrap.accept_stream = [listener](int) -> Result<Socket> {
    const int accepted = ::accept(listener, nullptr, nullptr);
    if (accepted < 0) return Status::from_errno(errno, "accept");
    return Socket(UniqueFd(accepted));
  };
  bootstrap.open_stream = [listener](int) -> Result<Socket> {
    sockaddr_in address{};
    socklen_t length = sizeof address;
    ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length);
    UniqueFd socket(::socket(AF_INET, SOCK_STREAM, 0));
    if (::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), length) != 0) {
      return Status::from_errno(errno, "connect");
    }
    return Socket(std::move(socket));
  };
  auto link = transport::make_link(medium, std::move(bootstrap), p2p::Engine::link_options());
  if (!link) die(link.status().message());
  return std::move(*link);
}

int run(const Options& options, int index, int partner, const std::vector<int>& controls,
        int listener) {
  for (const std::string& setting : options.destination) {
    const size_t equals = setting.find('=');
    if (index == 1) {
      ::setenv(setting.substr(0, equals).c_str(), setting.substr(equals + 1).c_str(), 1);
    }
  }
  Worker worker(options, index, partner);
  size_t control = 0;
  const transport::Medium& medium = test::medium_named(options.medium);
  for (int round = 0; round < options.rounds; ++round) {
    for (const std::string& strategy : options.strategies) {
      worker.open(strategy, make_link(medium, controls[control++], index, listener));
      bool settled = false;
      for (const std::string& pass : options.passes) {
        if (pass != "start" && !std::exchange(settled, true)) worker.settle();
        if (pass == "loaded") worker.load();
        const std::string label = strategy + " " + medium.name() +
                                  (options.streams ? "" : " no stream") +
                                  (options.passes.size() == 1 ? "" : " " + pass);
        for (const uint64_t bytes : sizes_of(options)) {
          if (index == 0) {
            const bool starting = pass == "start";
            worker.send(label, bytes, options.seconds_per_size * (starting ? 0.2 : 1),
                        pass == "settled" ? 16 : 4);
          } else {
            worker.receive(bytes);
          }
        }
        if (pass == "loaded") worker.unload();
      }
      worker.close();
    }
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (const char* level = std::getenv("RCUDA_LOG")) set_log_level(level);
  const Options options = parse(argc, argv);
  const size_t runs = options.strategies.size() * static_cast<size_t>(options.rounds);
  int partners[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM, 0, partners) != 0) die("socketpair");
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  if (::bind(listener, reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      ::listen(listener, 64) != 0) {
    die("no loopback port");
  }
  ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length);
  // One control connection per run. Unix or TCP, depending on the medium. Made before the fork,
  // while this process has no threads.
  std::vector<int> controls[2];
  const bool local =
      test::medium_named(options.medium).traits.reach == transport::Reach::kThisMachine;
  for (size_t i = 0; i < runs; ++i) {
    int pair[2];
    if (local) {
      if (::socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0) die("socketpair");
    } else {
      pair[0] = ::socket(AF_INET, SOCK_STREAM, 0);
      if (::connect(pair[0], reinterpret_cast<sockaddr*>(&address), length) != 0) die("connect");
      pair[1] = ::accept(listener, nullptr, nullptr);
    }
    controls[0].push_back(pair[0]);
    controls[1].push_back(pair[1]);
  }
  std::printf("label,bytes,first_us,median_us,train_us,median_gbps,train_gbps,mean_us,last_us\n");
  std::fflush(stdout);
  const pid_t child = ::fork();
  const int index = child == 0 ? 1 : 0;
  ::close(partners[1 - index]);
  for (const int other : controls[1 - index]) ::close(other);
  const int result = run(options, index, partners[index], controls[index], listener);
  if (child == 0) std::_Exit(result);
  int status = 0;
  ::waitpid(child, &status, 0);
  return status == 0 ? result : 1;
}
