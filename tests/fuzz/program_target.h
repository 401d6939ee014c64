// The program fuzzer's work on one input. softgpu_exec_test runs it over fixed mutations, too. For
// any PTX, loading gives either an error with a message or a program whose kernels end: normally,
// with a fault, or because they are stopped. They may touch only the program's own memory and one
// buffer, whose address is in every parameter; the sanitizers check this.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "softgpu/exec/program.h"
#include "softgpu/ptx/parser.h"

namespace softgpu::exec {

// A small amount of memory, which is freed with this object.
class FuzzMemory {
 public:
  CUdeviceptr allocate(size_t bytes) {
    constexpr size_t kAlign = 256, kMost = 1 << 20;
    std::lock_guard lock(mutex_);
    if (bytes == 0 || bytes > kMost - used_) return 0;
    auto block = std::make_unique<std::byte[]>(bytes + kAlign);
    const auto address =
        (reinterpret_cast<CUdeviceptr>(block.get()) + kAlign - 1) / kAlign * kAlign;
    if (!map.add(address, bytes)) std::abort();
    blocks_.emplace(address, std::move(block));
    used_ += bytes;
    return address;
  }
  bool release(CUdeviceptr address) {
    std::lock_guard lock(mutex_);
    if (blocks_.count(address) == 0) return false;
    if (!map.remove(address)) std::abort();
    return blocks_.erase(address) == 1;
  }

  MemoryMap map;

 private:
  std::mutex mutex_;
  std::map<CUdeviceptr, std::unique_ptr<std::byte[]>> blocks_;
  size_t used_ = 0;  // never decreased, so that programs which allocate in a loop end
};

// Sets a flag some time after arm(), unless it is disarmed first.
class Watchdog {
 public:
  Watchdog() : thread_([this] { watch(); }) {}
  ~Watchdog() {
    {
      std::lock_guard lock(mutex_);
      ending_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }
  const std::atomic<bool>* arm(std::chrono::milliseconds after) {
    std::lock_guard lock(mutex_);
    stop_ = false;
    armed_ = true;
    deadline_ = std::chrono::steady_clock::now() + after;
    changed_.notify_one();
    return &stop_;
  }
  void disarm() {
    std::lock_guard lock(mutex_);
    armed_ = false;
  }

 private:
  void watch() {
    std::unique_lock lock(mutex_);
    while (!ending_) {
      if (!armed_) {
        changed_.wait(lock);
      } else if (changed_.wait_until(lock, deadline_) == std::cv_status::timeout && armed_ &&
                 std::chrono::steady_clock::now() >= deadline_) {
        stop_ = true;
        armed_ = false;
      }
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool armed_ = false, ending_ = false;
  std::chrono::steady_clock::time_point deadline_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

inline void run_kernel(const Kernel& kernel, FuzzMemory& memory, CUdeviceptr buffer) {
  static Watchdog watchdog;
  constexpr uint32_t kMostParameterBytes = 32764;  // no launch passes more
  if (kernel.parameter_bytes > kMostParameterBytes) return;
  std::vector<std::byte> parameters(kernel.parameter_bytes);
  for (size_t at = 0; at + sizeof buffer <= parameters.size(); at += sizeof buffer) {
    std::memcpy(&parameters[at], &buffer, sizeof buffer);
  }
  Environment environment;
  environment.memory = &memory.map;
  environment.print = [](std::string_view, bool) {};
  environment.heap_allocate = [&](size_t bytes) { return memory.allocate(bytes); };
  environment.heap_release = [&](CUdeviceptr address) { return memory.release(address); };
  Launch launch;
  launch.kernel = &kernel;
  launch.grid = {2};
  launch.block = {40};  // a full warp and part of one
  launch.dynamic_shared_bytes = 64;
  launch.parameters = parameters;
  launch.cooperative = true;
  const Fault fault = run(launch, environment, watchdog.arm(std::chrono::milliseconds(20)));
  watchdog.disarm();
  if (fault.code != CUDA_SUCCESS && fault.message.empty()) std::abort();
}

// Returns whether the program was loaded.
inline bool fuzz_program(const uint8_t* data, size_t size) {
  auto module = ptx::parse(std::string(reinterpret_cast<const char*>(data), size));
  if (!module.ok()) return false;
  std::vector<std::unique_ptr<ptx::Module>> units;
  units.push_back(std::move(*module));
  FuzzMemory memory;
  DeviceAllocator allocator;
  allocator.allocate = [&](size_t bytes, bool) { return memory.allocate(bytes); };
  allocator.release = [&](CUdeviceptr address) { memory.release(address); };
  const auto program = load(std::move(units), allocator);
  if (!program.ok()) {
    if (program.status().context().empty()) std::abort();
    return false;
  }
  const CUdeviceptr buffer = memory.allocate(64 << 10);
  if (buffer == 0) return true;
  std::memset(reinterpret_cast<void*>(buffer), 0, 64 << 10);
  size_t left = 8;  // a text may consist of kernels only
  for (const Kernel* kernel : (*program)->kernels()) {
    if (left-- == 0) break;
    run_kernel(*kernel, memory, buffer);
  }
  return true;
}

}  // namespace softgpu::exec
