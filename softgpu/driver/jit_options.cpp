#include "softgpu/driver/jit_options.h"

#include <algorithm>
#include <cstring>

namespace softgpu::driver {

CUresult JitLog::read(unsigned count, CUjit_option* options, void** values, JitLog* log) {
  if (count != 0 && (!options || !values)) return CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; i < count; ++i) {
    if (static_cast<unsigned>(options[i]) >= CU_JIT_NUM_OPTIONS) return CUDA_ERROR_INVALID_VALUE;
    switch (options[i]) {
      case CU_JIT_INFO_LOG_BUFFER:
        log->info_.text = static_cast<char*>(values[i]);
        break;
      case CU_JIT_ERROR_LOG_BUFFER:
        log->error_.text = static_cast<char*>(values[i]);
        break;
      // Sizes are unsigned ints passed in place of a pointer.
      case CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES:
        log->info_.capacity = static_cast<unsigned>(reinterpret_cast<uintptr_t>(values[i]));
        log->info_.size_value = &values[i];
        break;
      case CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES:
        log->error_.capacity = static_cast<unsigned>(reinterpret_cast<uintptr_t>(values[i]));
        log->error_.size_value = &values[i];
        break;
      case CU_JIT_WALL_TIME:
        log->wall_time_ = &values[i];
        break;
      default:
        break;  // options for code generation do not matter to an interpreter
    }
  }
  for (Buffer* buffer : {&log->info_, &log->error_}) {
    if (buffer->text && buffer->capacity > 0) buffer->text[0] = '\0';
  }
  return CUDA_SUCCESS;
}

void JitLog::error(const std::string& line) {
  Buffer& buffer = error_;
  if (!buffer.text || buffer.used + 1 >= buffer.capacity) return;
  const std::string text = "error   : " + line + "\n";
  const size_t fits = std::min(text.size(), buffer.capacity - buffer.used - 1);
  std::memcpy(buffer.text + buffer.used, text.data(), fits);
  buffer.used += fits;
  buffer.text[buffer.used] = '\0';
}

void JitLog::finish() {
  for (Buffer* buffer : {&info_, &error_}) {
    if (buffer->size_value) *buffer->size_value = reinterpret_cast<void*>(buffer->used);
  }
  if (wall_time_) {
    const float milliseconds = 0;
    std::memcpy(wall_time_, &milliseconds, sizeof milliseconds);
  }
}

}  // namespace softgpu::driver
