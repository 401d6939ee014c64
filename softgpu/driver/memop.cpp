#include "softgpu/driver/memop.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include <sys/prctl.h>

#include "softgpu/driver/capture.h"
#include "softgpu/driver/context.h"
#include "softgpu/driver/stream.h"

namespace softgpu::driver {
namespace {

constexpr int64_t kPollSpinNs = 20'000;
// A pause is a small fraction of the time waited, so it adds little to any wait.
constexpr int kPauseFraction = 16;
constexpr std::chrono::microseconds kShortestPause{10};
constexpr std::chrono::microseconds kLongestPause{200};
constexpr unsigned kMaximumOperations = 256;

bool accessible(Context& context, CUdeviceptr address, size_t bytes) {
  const exec::Range range = context.memory().find(address);
  return range.begin <= address && address + bytes <= range.end;
}

bool is_wait(CUstreamBatchMemOpType type) {
  return type == CU_STREAM_MEM_OP_WAIT_VALUE_32 || type == CU_STREAM_MEM_OP_WAIT_VALUE_64;
}

size_t width_of(CUstreamBatchMemOpType type) {
  return type == CU_STREAM_MEM_OP_WAIT_VALUE_64 || type == CU_STREAM_MEM_OP_WRITE_VALUE_64 ? 8 : 4;
}

template <typename Word>
bool holds(Word now, Word value, unsigned condition) {
  switch (condition) {
    case CU_STREAM_WAIT_VALUE_GEQ:
      // Cyclic, because counters may wrap.
      return static_cast<std::make_signed_t<Word>>(static_cast<Word>(now - value)) >= 0;
    case CU_STREAM_WAIT_VALUE_EQ:
      return now == value;
    case CU_STREAM_WAIT_VALUE_AND:
      return (now & value) != 0;
    default:
      return static_cast<Word>(~(now | value)) != 0;  // NOR
  }
}

template <typename Word>
CUresult wait_for_value(Context& context, CUdeviceptr address, Word value, unsigned condition) {
  auto ready = [&] {
    // Pairs with the write of the word by a kernel, a copy or the host.
    return holds(std::atomic_ref(*reinterpret_cast<Word*>(address)).load(std::memory_order_acquire),
                 value, condition);
  };
  if (!accessible(context, address, sizeof(Word))) return CUDA_ERROR_ILLEGAL_ADDRESS;
  if (spin_until(ready, kPollSpinNs)) return CUDA_SUCCESS;
  // Reduces the timer slack, by default 50 us, which Linux adds to every sleep.
  ::prctl(PR_SET_TIMERSLACK, 1);
  const int64_t start_ns = now_ns();
  for (;;) {
    if (context.stopping().load(std::memory_order_relaxed)) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if (context.sticky() != CUDA_SUCCESS) return context.sticky();
    if (!accessible(context, address, sizeof(Word))) return CUDA_ERROR_ILLEGAL_ADDRESS;
    if (ready()) return CUDA_SUCCESS;
    const std::chrono::nanoseconds waited(now_ns() - start_ns);
    std::this_thread::sleep_for(std::clamp<std::chrono::nanoseconds>(
        waited / kPauseFraction, kShortestPause, kLongestPause));
  }
}

template <typename Word>
CUresult write_value(Context& context, CUdeviceptr address, Word value) {
  if (!accessible(context, address, sizeof(Word))) return CUDA_ERROR_ILLEGAL_ADDRESS;
  // Release, even if no barrier was requested: the stream's earlier work becomes visible before the
  // value.
  std::atomic_ref(*reinterpret_cast<Word*>(address)).store(value, std::memory_order_release);
  return CUDA_SUCCESS;
}

CUresult execute_one(Context& context, const CUstreamBatchMemOpParams& operation) {
  switch (operation.operation) {
    case CU_STREAM_MEM_OP_WAIT_VALUE_32:
      return wait_for_value<uint32_t>(context, operation.waitValue.address,
                                      operation.waitValue.value, operation.waitValue.flags);
    case CU_STREAM_MEM_OP_WAIT_VALUE_64:
      return wait_for_value<uint64_t>(context, operation.waitValue.address,
                                      operation.waitValue.value64, operation.waitValue.flags);
    case CU_STREAM_MEM_OP_WRITE_VALUE_32:
      return write_value<uint32_t>(context, operation.writeValue.address,
                                   operation.writeValue.value);
    case CU_STREAM_MEM_OP_WRITE_VALUE_64:
      return write_value<uint64_t>(context, operation.writeValue.address,
                                   operation.writeValue.value64);
    default:
      return CUDA_SUCCESS;  // a barrier: writes are in order anyway
  }
}

CUresult check_one(Context& context, const CUstreamBatchMemOpParams& operation) {
  switch (operation.operation) {
    case CU_STREAM_MEM_OP_WAIT_VALUE_32:
    case CU_STREAM_MEM_OP_WAIT_VALUE_64:
    case CU_STREAM_MEM_OP_WRITE_VALUE_32:
    case CU_STREAM_MEM_OP_WRITE_VALUE_64:
      break;
    case CU_STREAM_MEM_OP_BARRIER:
      return CUDA_SUCCESS;
    case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
      return CUDA_ERROR_NOT_SUPPORTED;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
  const size_t bytes = width_of(operation.operation);
  if (is_wait(operation.operation)) {
    if ((operation.waitValue.flags & CU_STREAM_WAIT_VALUE_FLUSH) != 0) {
      return CUDA_ERROR_NOT_SUPPORTED;
    }
    if (operation.waitValue.flags > CU_STREAM_WAIT_VALUE_NOR) return CUDA_ERROR_INVALID_VALUE;
  } else if ((operation.writeValue.flags & ~CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  // waitValue and writeValue have the address at the same offset.
  const CUdeviceptr address = operation.waitValue.address;
  if (address % bytes != 0 || !accessible(context, address, bytes)) return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;
}

CUresult submit_one(CUstream stream, CUstreamBatchMemOpParams operation) {
  std::shared_ptr<Stream> target;
  Context* context = nullptr;
  if (CUresult result = enter_stream(stream, &context, &target)) return result;
  if (CUresult result = check_mem_ops(target->context(), {&operation, 1})) {
    invalidate_capture_of(*target);
    return result;
  }
  return submit(*target, MemOpOperation{{operation}});
}

CUstreamBatchMemOpParams wait_operation(CUstreamBatchMemOpType type, CUdeviceptr address,
                                        uint64_t value, unsigned flags) {
  CUstreamBatchMemOpParams operation{};
  operation.waitValue.operation = type;
  operation.waitValue.address = address;
  operation.waitValue.value64 = value;
  operation.waitValue.flags = flags;
  return operation;
}

CUstreamBatchMemOpParams write_operation(CUstreamBatchMemOpType type, CUdeviceptr address,
                                         uint64_t value, unsigned flags) {
  CUstreamBatchMemOpParams operation{};
  operation.writeValue.operation = type;
  operation.writeValue.address = address;
  operation.writeValue.value64 = value;
  operation.writeValue.flags = flags;
  return operation;
}

}  // namespace

CUresult check_mem_ops(Context& context, std::span<const CUstreamBatchMemOpParams> operations) {
  if (operations.size() > kMaximumOperations) return CUDA_ERROR_INVALID_VALUE;
  for (const CUstreamBatchMemOpParams& operation : operations) {
    if (CUresult result = check_one(context, operation)) return result;
  }
  return CUDA_SUCCESS;
}

CUresult execute_mem_ops(Context& context, const MemOpOperation& operation) {
  for (const CUstreamBatchMemOpParams& one : operation.operations) {
    if (CUresult result = execute_one(context, one)) return result;
  }
  return CUDA_SUCCESS;
}

}  // namespace softgpu::driver

using namespace softgpu::driver;  // for the entry points below

extern "C" {

CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr addr, cuuint32_t value,
                                unsigned int flags) {
  return submit_one(stream, wait_operation(CU_STREAM_MEM_OP_WAIT_VALUE_32, addr, value, flags));
}

CUresult cuStreamWaitValue64_v2(CUstream stream, CUdeviceptr addr, cuuint64_t value,
                                unsigned int flags) {
  return submit_one(stream, wait_operation(CU_STREAM_MEM_OP_WAIT_VALUE_64, addr, value, flags));
}

CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr addr, cuuint32_t value,
                                 unsigned int flags) {
  return submit_one(stream, write_operation(CU_STREAM_MEM_OP_WRITE_VALUE_32, addr, value, flags));
}

CUresult cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr addr, cuuint64_t value,
                                 unsigned int flags) {
  return submit_one(stream, write_operation(CU_STREAM_MEM_OP_WRITE_VALUE_64, addr, value, flags));
}

CUresult cuStreamBatchMemOp_v2(CUstream stream, unsigned int count,
                               CUstreamBatchMemOpParams* paramArray, unsigned int flags) {
  std::shared_ptr<Stream> target;
  Context* context = nullptr;
  if (CUresult result = enter_stream(stream, &context, &target)) return result;
  if (flags != 0 || (paramArray == nullptr && count != 0)) return CUDA_ERROR_INVALID_VALUE;
  if (count == 0) return CUDA_SUCCESS;
  if (CUresult result = check_mem_ops(target->context(), {paramArray, count})) {
    invalidate_capture_of(*target);
    return result;
  }
  return submit(*target, MemOpOperation{{paramArray, paramArray + count}});
}

}  // extern "C"
