#include "softgpu/exec/system.h"

#include <bit>
#include <ctime>

#include <emmintrin.h>

#include "softgpu/exec/lanes.h"

namespace softgpu::exec {
namespace {

// The SM clock of an H200 (CU_DEVICE_ATTRIBUTE_CLOCK_RATE). It ticks in real time, so a kernel that
// waits by counting cycles waits for the intended time.
constexpr uint64_t kClockMhz = 1980;
constexpr int64_t kClockCost = 16;  // so that other blocks run while a loop polls the clock

uint64_t now_ns(clockid_t clock) {
  timespec t{};
  clock_gettime(clock, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(t.tv_nsec);
}
uint64_t cycles() { return now_ns(CLOCK_MONOTONIC) * kClockMhz / 1000; }

template <class T>
void broadcast(Lanes& x, const Instr& i, T value) {
  T* d = x.at<T>(i.d);
  for (uint32_t rest = x.mask; rest != 0; rest &= rest - 1) d[std::countr_zero(rest)] = value;
}

void clock32(Lanes& x, const Instr& i) {
  x.fuel -= kClockCost;
  broadcast(x, i, static_cast<uint32_t>(cycles()));
}
void clock_high(Lanes& x, const Instr& i) {
  x.fuel -= kClockCost;
  broadcast(x, i, static_cast<uint32_t>(cycles() >> 32));
}
void clock64(Lanes& x, const Instr& i) {
  x.fuel -= kClockCost;
  broadcast(x, i, cycles());
}
void global_timer(Lanes& x, const Instr& i) {
  x.fuel -= kClockCost;
  broadcast(x, i, now_ns(CLOCK_REALTIME));
}
void global_timer_low(Lanes& x, const Instr& i) {
  x.fuel -= kClockCost;
  broadcast(x, i, static_cast<uint32_t>(now_ns(CLOCK_REALTIME)));
}
void global_timer_high(Lanes& x, const Instr& i) {
  x.fuel -= kClockCost;
  broadcast(x, i, static_cast<uint32_t>(now_ns(CLOCK_REALTIME) >> 32));
}
void active_mask(Lanes& x, const Instr& i) { broadcast(x, i, x.mask); }
void nothing(Lanes&, const Instr&) {}
void fence(Lanes&, const Instr&) { _mm_mfence(); }
void sleep(Lanes& x, const Instr&) { x.fuel -= kSleepCost; }
void trap(Lanes& x, const Instr&) {
  x.fault_at(static_cast<uint32_t>(std::countr_zero(x.mask)), CUDA_ERROR_LAUNCH_FAILED, 0, "trap");
}

}  // namespace

Handler system_handler(Op op) {
  switch (op) {
    case Op::kClock:
      return clock32;
    case Op::kClock64:
      return clock64;
    case Op::kClockHi:
      return clock_high;
    case Op::kGlobalTimer:
      return global_timer;
    case Op::kGlobalTimerLo:
      return global_timer_low;
    case Op::kGlobalTimerHi:
      return global_timer_high;
    case Op::kActiveMask:
      return active_mask;
    case Op::kNop:
      return nothing;
    case Op::kFence:
      return fence;
    case Op::kNanosleep:
      return sleep;
    case Op::kTrap:
      return trap;
    default:
      return nullptr;
  }
}

}  // namespace softgpu::exec
