#include "client/code/jit_options.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace rcuda::client {
namespace {

bool is_buffer(CUjit_option option) {
  return option == CU_JIT_INFO_LOG_BUFFER || option == CU_JIT_ERROR_LOG_BUFFER ||
         option == CU_JIT_GLOBAL_SYMBOL_NAMES || option == CU_JIT_GLOBAL_SYMBOL_ADDRESSES;
}

bool is_buffer(CUlibraryOption option) {
  return option == CU_LIBRARY_HOST_UNIVERSAL_FUNCTION_AND_DATA_TABLE;
}

template <typename Key>
std::vector<wire::JitOption> numbers(std::span<const Key> keys, void* const* values) {
  std::vector<wire::JitOption> numbers;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (is_buffer(keys[i])) continue;
    numbers.push_back({static_cast<uint32_t>(keys[i]), 0, reinterpret_cast<uintptr_t>(values[i])});
  }
  return numbers;
}

// Reads the size of a log buffer. The option's value is the size itself (an unsigned int), not a
// pointer to the size.
void take_capacity(LogBuffer* buffer, void** value) {
  buffer->capacity = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(*value));
  buffer->size_value = value;
}

void fill_log(const LogBuffer& buffer, const wire::JitLog& log, const char* text) {
  if (!buffer.text || buffer.capacity == 0) return;
  const size_t length = std::min<size_t>(log.text_bytes, buffer.capacity - 1);
  std::memcpy(buffer.text, text, length);
  buffer.text[length] = '\0';
  // At most the capacity: the application may use this value as the length of its buffer.
  const size_t filled = std::min<size_t>(log.size_value, buffer.capacity);
  *buffer.size_value = reinterpret_cast<void*>(filled);
}

}  // namespace

LogBuffers log_buffers(std::span<const CUjit_option> options, void** values) {
  LogBuffers buffers;
  for (size_t i = 0; i < options.size(); ++i) {
    switch (options[i]) {
      case CU_JIT_INFO_LOG_BUFFER:
        buffers.info.text = static_cast<char*>(values[i]);
        break;
      case CU_JIT_ERROR_LOG_BUFFER:
        buffers.error.text = static_cast<char*>(values[i]);
        break;
      case CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES:
        take_capacity(&buffers.info, &values[i]);
        break;
      case CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES:
        take_capacity(&buffers.error, &values[i]);
        break;
      case CU_JIT_WALL_TIME:
        buffers.wall_time = &values[i];
        break;
      default:
        break;
    }
  }
  return buffers;
}

void forget_logs(JitOptions* options) {
  for (size_t i = options->keys.size(); i-- > 0;) {
    const CUjit_option key = options->keys[i];
    if (key != CU_JIT_INFO_LOG_BUFFER && key != CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES &&
        key != CU_JIT_ERROR_LOG_BUFFER && key != CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES) {
      continue;
    }
    options->keys.erase(options->keys.begin() + static_cast<std::ptrdiff_t>(i));
    options->values.erase(options->values.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

void fill_logs(const LogBuffers& buffers, std::span<const std::byte> bytes) {
  wire::JitLogs logs;
  if (bytes.size() < sizeof logs) return;
  std::memcpy(&logs, bytes.data(), sizeof logs);
  bytes = bytes.subspan(sizeof logs);
  if (logs.info.text_bytes > bytes.size() ||
      logs.error.text_bytes > bytes.size() - logs.info.text_bytes) {
    return;
  }
  if (buffers.wall_time) *buffers.wall_time = reinterpret_cast<void*>(uintptr_t{logs.wall_time});
  const char* text = reinterpret_cast<const char*>(bytes.data());
  fill_log(buffers.info, logs.info, text);
  fill_log(buffers.error, logs.error, text + logs.info.text_bytes);
}

std::vector<wire::JitOption> numbers_of(std::span<const CUjit_option> options,
                                        void* const* values) {
  return numbers(options, values);
}

std::vector<wire::JitOption> numbers_of(std::span<const CUlibraryOption> options,
                                        void* const* values) {
  return numbers(options, values);
}

}  // namespace rcuda::client
