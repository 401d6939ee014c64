#include "softgpu/driver/call_gate.h"

#include <atomic>
#include <cstdint>
#include <thread>

namespace softgpu::driver::gate {
namespace {

std::atomic<bool> closed{false};
std::atomic<uint32_t> inside{0};
thread_local int depth = 0;

constexpr auto kPause = std::chrono::microseconds(50);

}  // namespace

void pass() {
  // A call inside of a submission has already passed the gate.
  if (depth == 0) closed.wait(true, std::memory_order_acquire);
}

Submission::Submission() {
  if (depth++ != 0) return;
  for (;;) {
    inside.fetch_add(1);
    if (!closed.load()) return;
    inside.fetch_sub(1);
    closed.wait(true);
  }
}

Submission::~Submission() {
  if (--depth == 0) inside.fetch_sub(1);
}

bool close(std::chrono::steady_clock::time_point deadline) {
  closed.store(true);
  while (inside.load() != 0) {
    if (std::chrono::steady_clock::now() >= deadline) {
      open();
      return false;
    }
    std::this_thread::sleep_for(kPause);
  }
  return true;
}

void open() {
  closed.store(false);
  closed.notify_all();
}

}  // namespace softgpu::driver::gate
