// Condition: the value behind a conditional handle (CUgraphConditionalHandle). Kernels set it; the
// graph's conditional node reads it to choose a body.
//
// A condition belongs to the graph for which its handle was made. The executables of that graph
// share it, so a kernel of an executable may still set the condition after the graph was destroyed.
// Any thread; nothing blocks for long.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include <cuda.h>

namespace softgpu::driver {

struct GraphNode;

class Condition {
 public:
  // `reset`: each launch sets the value to `initial` again.
  static std::shared_ptr<Condition> make(unsigned initial, bool reset);
  // Null for an unknown handle.
  static std::shared_ptr<Condition> find(CUgraphConditionalHandle handle);
  ~Condition();
  Condition(const Condition&) = delete;
  Condition& operator=(const Condition&) = delete;

  CUgraphConditionalHandle handle() const { return handle_; }
  unsigned value() const { return value_.load(std::memory_order_acquire); }
  void set(unsigned value) { value_.store(value, std::memory_order_release); }
  void begin_launch() {
    if (reset_) set(initial_);
  }

  const GraphNode* node = nullptr;  // reads the condition; guarded by graph_mutex()

 private:
  Condition(CUgraphConditionalHandle handle, unsigned initial, bool reset);

  const CUgraphConditionalHandle handle_;
  const unsigned initial_;
  const bool reset_;
  std::atomic<unsigned> value_;
};

}  // namespace softgpu::driver
