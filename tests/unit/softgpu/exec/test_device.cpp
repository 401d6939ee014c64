#include "tests/unit/softgpu/exec/test_device.h"

#include <gtest/gtest.h>

#include "softgpu/ptx/parser.h"

namespace softgpu::exec {

TestDevice::TestDevice() {
  environment_.memory = &map_;
  environment_.print = [this](std::string_view text, bool is_stderr) {
    std::lock_guard lock(mutex_);
    (is_stderr ? errors_ : output_).append(text);
  };
  environment_.heap_allocate = [this](size_t bytes) -> CUdeviceptr {
    std::lock_guard lock(mutex_);
    return bytes > heap_limit ? 0 : allocate(bytes);
  };
  environment_.heap_release = [this](CUdeviceptr address) {
    std::lock_guard lock(mutex_);
    const bool known = blocks_.count(address) != 0;
    if (known) release(address);
    return known;
  };
}

TestDevice::~TestDevice() = default;

CUdeviceptr TestDevice::allocate(size_t bytes, Access access) {
  constexpr size_t kAlign = 256;
  auto block = std::make_unique<std::byte[]>(bytes + kAlign);
  const auto address = (reinterpret_cast<CUdeviceptr>(block.get()) + kAlign - 1) / kAlign * kAlign;
  blocks_.emplace(address, std::move(block));
  EXPECT_TRUE(map_.add(address, bytes, access));
  return address;
}

void TestDevice::release(CUdeviceptr address) {
  EXPECT_TRUE(map_.remove(address));
  blocks_.erase(address);
}

rcuda::Status TestDevice::try_load(const std::vector<std::string>& units) {
  std::vector<std::unique_ptr<ptx::Module>> modules;
  for (const std::string& unit : units) {
    auto module = ptx::parse(unit);
    if (!module.ok()) return module.status();
    modules.push_back(std::move(*module));
  }
  DeviceAllocator allocator;
  allocator.allocate = [this](size_t bytes, bool) { return allocate(bytes); };
  allocator.release = [this](CUdeviceptr address) { release(address); };
  program_.reset();
  auto program = exec::load(std::move(modules), allocator);
  if (!program.ok()) return program.status();
  program_ = std::move(*program);
  return {};
}

void TestDevice::load(const std::vector<std::string>& units) {
  const rcuda::Status status = try_load(units);
  ASSERT_TRUE(status.ok()) << status.message();
}

void TestDevice::load_body(const std::string& body) {
  load(".version 8.0\n.target sm_90\n.address_size 64\n" + body);
}

Fault TestDevice::launch(const std::string& kernel, Dim3 grid, Dim3 block,
                         const Arguments& arguments, uint32_t dynamic_shared_bytes,
                         bool cooperative, const std::atomic<bool>* stop) {
  Launch launch;
  launch.kernel = program_ == nullptr ? nullptr : program_->find_kernel(kernel);
  if (launch.kernel == nullptr) return {CUDA_ERROR_NOT_FOUND, "no kernel '" + kernel + "'"};
  launch.grid = grid;
  launch.block = block;
  launch.dynamic_shared_bytes = dynamic_shared_bytes;
  launch.parameters = arguments.bytes();
  launch.cooperative = cooperative;
  return run(launch, environment_, stop);
}

std::string TestDevice::take_output() {
  std::lock_guard lock(mutex_);
  return std::exchange(output_, {});
}
std::string TestDevice::take_errors() {
  std::lock_guard lock(mutex_);
  return std::exchange(errors_, {});
}

}  // namespace softgpu::exec
