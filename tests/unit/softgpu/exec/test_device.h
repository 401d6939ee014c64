// A device for the interpreter's tests: memory, a loaded program, captured output.
#pragma once

#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "softgpu/exec/program.h"

namespace softgpu::exec {

// Packs kernel arguments as the ABI does.
class Arguments {
 public:
  template <class T>
  Arguments& operator<<(const T& value) {
    const size_t at = (bytes_.size() + alignof(T) - 1) / alignof(T) * alignof(T);
    bytes_.resize(at + sizeof(T));
    std::memcpy(bytes_.data() + at, &value, sizeof value);
    return *this;
  }
  const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

class TestDevice {
 public:
  TestDevice();
  ~TestDevice();

  CUdeviceptr allocate(size_t bytes, Access access = Access::kReadWrite);
  template <class T>
  T* array(size_t count) {
    return reinterpret_cast<T*>(allocate(count * sizeof(T)));
  }
  void release(CUdeviceptr address);

  // Loads PTX; the text of several units links them. Fails the test on an error.
  void load(const std::vector<std::string>& units);
  void load(const std::string& unit) { load(std::vector<std::string>{unit}); }
  rcuda::Status try_load(const std::vector<std::string>& units);
  // Loads the body after the usual header.
  void load_body(const std::string& body);

  Fault launch(const std::string& kernel, Dim3 grid, Dim3 block, const Arguments& arguments,
               uint32_t dynamic_shared_bytes = 0, bool cooperative = false,
               const std::atomic<bool>* stop = nullptr);

  const Program& program() const { return *program_; }
  MemoryMap& memory() { return map_; }
  std::string take_output();
  std::string take_errors();
  size_t blocks_allocated() const { return blocks_.size(); }
  size_t heap_limit = 1 << 20;

 private:
  MemoryMap map_;
  std::map<CUdeviceptr, std::unique_ptr<std::byte[]>> blocks_;
  std::unique_ptr<Program> program_;
  std::mutex mutex_;
  std::string output_;
  std::string errors_;
  Environment environment_;
};

}  // namespace softgpu::exec
