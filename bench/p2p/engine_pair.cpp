// Two workers and nothing else: the peer-to-peer engine between two processes of one host, each
// with a GPU of its own, without client and server. Shows what the engine itself reaches, over each
// medium.
//
//   engine_pair [--medium shm|tcp] [--devices 0,1] [--min 4K] [--max 256M] [--driver auto]
//               [--strategy auto,v3b,v4b:1Mx4/shm,...] [--rounds N] [--cache FILE]
//               [--streams on|off]
//
// A strategy is one of RCUDA_P2P_STRATEGY, with RCUDA_P2P_PATH after a slash. With --cache each
// side keeps its measurements in a file (FILE.0, FILE.1).
//
// Each copy is in a stream of the source, as cudaMemcpyPeerAsync puts it there, and is timed from
// the call until the stream is idle again. CSV: the first copy, the median of those after it, and
// one of a train.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include <CLI/CLI.hpp>
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/transport/link.h"
#include "p2p/engine.h"
#include "server/peer/cuda_device_ops.h"
#include "server/worker/driver_loader.h"
#include "tests/support/link_pair.h"

namespace {

using namespace rcuda;
using Clock = std::chrono::steady_clock;

constexpr int kAhead = 8;

struct Options {
  std::string medium = "shm";
  int devices[2] = {0, 1};
  uint64_t min_bytes = 4;
  uint64_t max_bytes = 256ull << 20;
  std::string driver = "auto";
  std::vector<std::string> strategies{"auto"};
  int rounds = 1;
  std::string cache;
  bool streams = true;
  double seconds_per_size = 0.1;
};

[[noreturn]] void die(const std::string& why) {
  std::fprintf(stderr, "engine_pair: %s\n", why.c_str());
  std::_Exit(1);
}
void check(const Status& status) {
  if (!status.ok()) die(status.message());
}
void check(CUresult result, const char* what) {
  if (result != CUDA_SUCCESS) die(std::string(what) + " gave " + std::to_string(result));
}

// Exits where the arguments ask for help or cannot be.
Options parse(int argc, char** argv) {
  Options options;
  std::vector<int> devices{options.devices[0], options.devices[1]};
  std::vector<std::string> media;
  for (const transport::Medium& medium : transport::media()) media.push_back(medium.name());
  const std::map<std::string, bool> on_off{{"on", true}, {"off", false}};
  CLI::App app("Copies between the engines of two workers by size, as CSV");
  app.add_option("--medium", options.medium)->check(CLI::IsMember(media));
  app.add_option("--devices", devices)->expected(2)->delimiter(',');
  app.add_option("--min", options.min_bytes)->transform(CLI::AsSizeValue(false));
  app.add_option("--max", options.max_bytes)->transform(CLI::AsSizeValue(false));
  app.add_option("--driver", options.driver);
  app.add_option("--streams", options.streams)->transform(CLI::CheckedTransformer(on_off));
  app.add_option("--cache", options.cache);
  app.add_option("--rounds", options.rounds)->check(CLI::PositiveNumber);
  app.add_option("--seconds", options.seconds_per_size)->check(CLI::PositiveNumber);
  app.add_option("--strategy", options.strategies)->delimiter(',');
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error));
  }
  std::copy(devices.begin(), devices.end(), options.devices);
  return options;
}

std::vector<uint64_t> sizes_of(const Options& options) {
  std::vector<uint64_t> sizes;
  for (uint64_t bytes = 4; bytes <= options.max_bytes; bytes *= 2) {
    if (bytes >= options.min_bytes) sizes.push_back(bytes);
    if (bytes == (128u << 10) && options.min_bytes <= 200'000 && options.max_bytes >= 200'000) {
      sizes.push_back(200'000);
    }
  }
  return sizes;
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
        driver_.table, {{device_, context_}},
        [](CUresult result) { die("a copy failed with " + std::to_string(result)); });
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
    if (!options_.cache.empty()) {
      engine_options.measurements_path = options_.cache + "." + std::to_string(index_);
    }
    auto engine = p2p::Engine::create(*ops_, engine_options);
    if (!engine) die(engine.status().context());
    engine_ = *std::move(engine);
    engine_->attach(static_cast<p2p::PeerId>(1 - index_), std::move(link), token(), index_ == 0);
    if (!engine_->wait_until_open(std::chrono::seconds(60))) die("the peer did not open");
    // The legs are measured in the background; the copies are to be timed afterwards.
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    barrier();
  }
  void close() {
    barrier();
    engine_.reset();
    ops_.reset();
    barrier();
  }

  // The source's part of one size.
  void send(const std::string& label, uint64_t bytes, int copies) {
    std::vector<double> times;
    barrier();
    over_ = 0;
    for (int i = 0; i < copies; ++i) {
      const Clock::time_point begin = Clock::now();
      start(bytes, true);
      wait(i + 1);
      times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
    }
    const double first = times.front();
    std::nth_element(times.begin(), times.begin() + static_cast<long>(times.size() / 2),
                     times.end());
    const double median = times[times.size() / 2];
    barrier();
    // A train: the next copy is asked for while the last one runs.
    const Clock::time_point begin = Clock::now();
    over_ = 0;
    for (int i = 0; i < copies; ++i) start(bytes, true);
    wait(copies);
    const double train =
        std::chrono::duration<double, std::micro>(Clock::now() - begin).count() / copies;
    barrier();
    const auto size = static_cast<double>(bytes);
    std::printf("%s,%llu,%.2f,%.2f,%.2f,%.4f,%.4f\n", label.c_str(),
                static_cast<unsigned long long>(bytes), first, median, train, size / median * 1e-3,
                size / train * 1e-3);
    std::fflush(stdout);
  }
  // The destination's part: halves ahead of the source's, then the bytes are looked at. Not all of
  // them at once: the source's engine looks at each that has been announced in every round.
  void receive(uint64_t bytes, int copies) {
    const auto& table = driver_.table;
    check(table.cuMemsetD8_v2(memory_, 0x5a, bytes), "cuMemsetD8");
    check(table.cuStreamSynchronize(nullptr), "cuStreamSynchronize");
    for (int part = 0; part < 2; ++part) {
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
        __builtin_ia32_pause();
      }
    }
    barrier();
    std::vector<std::byte> seen(bytes);
    check(table.cuMemcpyDtoH_v2(seen.data(), memory_, bytes), "cuMemcpyDtoH");
    if (std::memcmp(seen.data(), host_.data(), bytes) != 0) {
      die("wrong bytes after copies of " + std::to_string(bytes));
    }
  }
  void barrier() {
    char byte = 0;
    if (::write(partner_, &byte, 1) != 1 || ::read(partner_, &byte, 1) != 1) die("partner gone");
  }

 private:
  // Until the stream is idle, or, without streams, until so many copies are over.
  void wait(int copies) {
    if (options_.streams) {
      check(driver_.table.cuStreamSynchronize(stream_), "cuStreamSynchronize");
    } else {
      while (over_ < copies) __builtin_ia32_pause();
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
  std::unique_ptr<server::CudaDeviceOps> ops_;
  std::unique_ptr<p2p::Engine> engine_;
  std::atomic<int> over_ = 0;
  uint64_t id_ = 0;
};

// Both processes know the plan, so nothing but bytes at barriers passes between them.
int copies_of(const Options& options, uint64_t bytes) {
  const double expected_us = 20 + static_cast<double>(bytes) / 20e3;
  return static_cast<int>(std::clamp(options.seconds_per_size * 1e6 / expected_us, 5.0, 300.0));
}

std::unique_ptr<transport::Link> make_link(const transport::Medium& medium, int control,
                                           int server_index, int listener) {
  transport::Bootstrap bootstrap;
  bootstrap.control.reset(control);
  bootstrap.server = server_index == 1;
  bootstrap.accept_stream = [listener](int) -> Result<UniqueFd> {
    const int accepted = ::accept(listener, nullptr, nullptr);
    if (accepted < 0) return Status::from_errno(errno, "accept");
    return UniqueFd(accepted);
  };
  bootstrap.open_stream = [listener](int) -> Result<UniqueFd> {
    sockaddr_in address{};
    socklen_t length = sizeof address;
    ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length);
    UniqueFd socket(::socket(AF_INET, SOCK_STREAM, 0));
    if (::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), length) != 0) {
      return Status::from_errno(errno, "connect");
    }
    return socket;
  };
  auto link = transport::make_link(medium, std::move(bootstrap), p2p::Engine::link_options());
  if (!link) die(link.status().message());
  return std::move(*link);
}

int run(const Options& options, int index, int partner, const std::vector<int>& controls,
        int listener) {
  Worker worker(options, index, partner);
  size_t control = 0;
  const transport::Medium& medium = test::medium_named(options.medium);
  for (int round = 0; round < options.rounds; ++round) {
    for (const std::string& strategy : options.strategies) {
      worker.open(strategy, make_link(medium, controls[control++], index, listener));
      for (const uint64_t bytes : sizes_of(options)) {
        const int copies = copies_of(options, bytes);
        if (index == 0) {
          worker.send(strategy + " " + medium.name() + (options.streams ? "" : " no stream"), bytes,
                      copies);
        } else {
          worker.receive(bytes, copies);
        }
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
  // A control connection per run, of the medium's kind, made before either process has threads.
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
  std::printf("label,bytes,first_us,median_us,train_us,median_gbps,train_gbps\n");
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
