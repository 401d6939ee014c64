#include "softgpu/exec/device_calls.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>
#include <string>

#include "softgpu/exec/block.h"
#include "softgpu/exec/memory.h"
#include "softgpu/exec/printf_format.h"

namespace softgpu::exec {
namespace {

constexpr size_t kLongestString = 64 * 1024;

// A call as one lane sees it. Its arguments and the place of its result are in the lane's local
// memory.
class Call {
 public:
  Call(const CallSite& site, Lanes& x, uint32_t lane)
      : site_(site),
        x_(x),
        area_(x.local + static_cast<size_t>(lane) * x.local_stride + x.local_base) {}

  template <class T>
  T argument(size_t k) const {
    T value{};
    if (k < site_.arguments.size()) {
      std::memcpy(&value, area_ + site_.arguments[k].offset_bytes,
                  std::min<size_t>(sizeof value, site_.arguments[k].size_bytes));
    }
    return value;
  }
  template <class T>
  void give_back(T value) const {
    if (site_.returns.empty()) return;
    std::memcpy(area_ + site_.returns[0].offset_bytes, &value,
                std::min<size_t>(sizeof value, site_.returns[0].size_bytes));
  }

 private:
  const CallSite& site_;
  Lanes& x_;
  std::byte* area_;
};

void print(Block& block, const std::string& text, bool is_stderr) {
  const Environment& environment = *block.grid().environment;
  if (environment.print) environment.print(text, is_stderr);
}

// int vprintf(const char* format, void* arguments)
void vprintf(Block& block, const Call& call, Lanes& x, uint32_t lane) {
  std::string format;
  if (!read_string(x, lane, call.argument<uint64_t>(0), kLongestString, &format)) return;
  const uint64_t buffer = call.argument<uint64_t>(1);
  PrintfArguments arguments;
  arguments.read = [&](size_t offset, void* to, size_t bytes) {
    const std::byte* from = host_address(x, lane, ptx::Space::kGeneric, buffer + offset,
                                         static_cast<uint32_t>(bytes), false);
    if (from != nullptr) std::memcpy(to, from, bytes);
    return from != nullptr;
  };
  arguments.read_string = [&](uint64_t address, std::string* text) {
    return read_string(x, lane, address, kLongestString, text);
  };
  std::string text;
  int count = 0;
  if (!format_printf(format, arguments, &text, &count)) return;
  if (!text.empty()) print(block, text, false);
  call.give_back<int32_t>(count);
}

// void __assertfail(const char* message, const char* file, unsigned line, const char* function,
// size_t)
void assert_fail(Block& block, const Call& call, Lanes& x, uint32_t lane, uint32_t warp) {
  std::string message, file, function;
  if (!read_string(x, lane, call.argument<uint64_t>(0), kLongestString, &message) ||
      !read_string(x, lane, call.argument<uint64_t>(1), kLongestString, &file) ||
      !read_string(x, lane, call.argument<uint64_t>(3), kLongestString, &function)) {
    return;
  }
  const Dim3 b = block.id();
  const Dim3 t = block.thread(warp, lane);
  char where[160];
  std::snprintf(where, sizeof where, ": block: [%u,%u,%u], thread: [%u,%u,%u] Assertion `", b.x,
                b.y, b.z, t.x, t.y, t.z);
  print(block,
        file + ":" + std::to_string(call.argument<uint32_t>(2)) + ": " + function + where +
            message + "` failed.\n",
        true);
}

}  // namespace

void device_call(Block& block, Warp& warp, const CallSite& site, Lanes& x) {
  const Environment& environment = *block.grid().environment;
  for (uint32_t rest = x.mask; rest != 0 && !x.faulted; rest &= rest - 1) {
    const auto lane = static_cast<uint32_t>(std::countr_zero(rest));
    const Call call(site, x, lane);
    switch (site.system_call) {
      case SystemCall::kVprintf:
        vprintf(block, call, x, lane);
        break;
      case SystemCall::kMalloc: {
        const uint64_t bytes = call.argument<uint64_t>(0);
        const bool possible = bytes != 0 && environment.heap_allocate != nullptr;
        call.give_back<uint64_t>(possible ? environment.heap_allocate(bytes) : 0);
        break;
      }
      case SystemCall::kFree: {
        const uint64_t address = call.argument<uint64_t>(0);
        if (address != 0 && environment.heap_release && !environment.heap_release(address)) {
          x.fault_at(lane, CUDA_ERROR_ILLEGAL_ADDRESS, address,
                     "free() of an address that is not from malloc():");
        }
        break;
      }
      case SystemCall::kAssertFail:
        assert_fail(block, call, x, lane, warp.index());
        break;
      case SystemCall::kSetConditional:
        if (environment.set_conditional) {
          environment.set_conditional(call.argument<uint64_t>(0), call.argument<uint32_t>(1));
        }
        break;
      case SystemCall::kNone:
        break;
    }
  }
  if (site.system_call == SystemCall::kAssertFail) {
    x.fault_at(static_cast<uint32_t>(std::countr_zero(x.mask)), CUDA_ERROR_ASSERT, 0,
               "assertion failed");
  }
}

}  // namespace softgpu::exec
