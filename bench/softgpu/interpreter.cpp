// Measures how fast softgpu interprets PTX: thread-instructions per second of an arithmetic kernel
// (Mandelbrot) and of a shared-memory matrix product, on one core and on all cores.
//
//   interpreter [KERNELS.ptx]
//
// The number of workers is fixed when a process starts, so each number of workers is measured in
// its own child process. A figure is the best of three launches, by wall-clock time and, for
// machines with other load, by processor time ("per core").
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include "softgpu/exec/program.h"
#include "softgpu/ptx/parser.h"

namespace {

using namespace softgpu;

constexpr int kRepetitions = 3;

struct Rate {
  double wall = 0;      // million thread-instructions per second
  double per_core = 0;  // million thread-instructions per second of processor time
};

double processor_seconds() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

class Bench {
 public:
  explicit Bench(const std::string& ptx) {
    auto module = ptx::parse(ptx);
    if (!module.ok()) fail(module.status().message());
    std::vector<std::unique_ptr<ptx::Module>> units;
    units.push_back(std::move(*module));
    exec::DeviceAllocator allocator;
    allocator.allocate = [this](size_t bytes, bool) { return allocate(bytes); };
    allocator.release = [](CUdeviceptr) {};
    auto program = exec::load(std::move(units), allocator);
    if (!program.ok()) fail(program.status().message());
    program_ = std::move(*program);
    environment_.memory = &map_;
  }

  CUdeviceptr allocate(size_t bytes) {
    blocks_.push_back(std::make_unique<std::byte[]>(bytes + 256));
    const auto address = (reinterpret_cast<CUdeviceptr>(blocks_.back().get()) + 255) / 256 * 256;
    map_.add(address, bytes);
    return address;
  }

  // Runs the kernel kRepetitions times and returns the best rates.
  template <class... T>
  Rate measure(const char* kernel, exec::Dim3 grid, exec::Dim3 block, T... arguments) {
    std::vector<std::byte> bytes;
    const auto pack = [&](auto value) {
      const size_t at = (bytes.size() + sizeof value - 1) / sizeof value * sizeof value;
      bytes.resize(at + sizeof value);
      std::memcpy(bytes.data() + at, &value, sizeof value);
    };
    (pack(arguments), ...);
    exec::Launch launch;
    launch.kernel = program_->find_kernel(kernel);
    if (launch.kernel == nullptr) fail(kernel);
    launch.grid = grid;
    launch.block = block;
    launch.parameters = bytes;
    Rate best;
    for (int k = 0; k < kRepetitions; ++k) {
      const uint64_t before = exec::counters().thread_instructions;
      const double processor_begin = processor_seconds();
      const auto begin = std::chrono::steady_clock::now();
      const exec::Fault fault = exec::run(launch, environment_);
      const double seconds =
          std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      if (fault.code != CUDA_SUCCESS) fail(fault.message);
      const double millions =
          static_cast<double>(exec::counters().thread_instructions - before) / 1e6;
      best.wall = std::max(best.wall, millions / seconds);
      best.per_core = std::max(best.per_core, millions / (processor_seconds() - processor_begin));
    }
    return best;
  }

 private:
  [[noreturn]] static void fail(const std::string& why) {
    std::fprintf(stderr, "interpreter: %s\n", why.c_str());
    std::exit(1);
  }

  exec::MemoryMap map_;
  std::vector<std::unique_ptr<std::byte[]>> blocks_;
  std::unique_ptr<exec::Program> program_;
  exec::Environment environment_;
};

void measure_all(const std::string& ptx, unsigned threads) {
  Bench bench(ptx);
  constexpr int kWidth = 512, kHeight = 512, kIterations = 1000, kOrder = 512;
  const Rate mandelbrot =
      bench.measure("mandelbrot", {kWidth / 16, kHeight / 16}, {16, 16},
                    bench.allocate(kWidth * kHeight * sizeof(int)), kWidth, kHeight, kIterations);
  const size_t bytes = size_t{kOrder} * kOrder * sizeof(float);
  const CUdeviceptr a = bench.allocate(bytes), b = bench.allocate(bytes), c = bench.allocate(bytes);
  std::memset(reinterpret_cast<void*>(a), 0, bytes);
  std::memset(reinterpret_cast<void*>(b), 0, bytes);
  const Rate product =
      bench.measure("matrix_product", {kOrder / 16, kOrder / 16}, {16, 16}, a, b, c, kOrder);
  std::printf("%7u %14.0f %14.0f %14.0f %14.0f\n", threads, mandelbrot.wall, mandelbrot.per_core,
              product.wall, product.per_core);
}

}  // namespace

int main(int argc, char** argv) {
  std::ifstream file(argc > 1 ? argv[1] : SOFTGPU_BENCH_PTX);
  std::stringstream text;
  text << file.rdbuf();
  if (!file || text.str().empty()) {
    std::fprintf(stderr, "interpreter: cannot read the kernels' PTX\n");
    return 1;
  }
  std::printf("million thread-instructions per second\n%7s %29s %29s\n%7s %14s %14s %14s %14s\n",
              "", "Mandelbrot", "matrix product", "workers", "", "per core", "", "per core");
  std::fflush(stdout);
  const unsigned all = std::max(std::thread::hardware_concurrency(), 1u);
  for (const unsigned threads : {1u, all}) {
    const pid_t child = fork();
    if (child == 0) {
      exec::set_worker_count(threads);
      measure_all(text.str(), threads);
      std::exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (status != 0) return 1;
    if (all == 1) break;
  }
  return 0;
}
