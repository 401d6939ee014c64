#include "server/executor/images/jit_options.h"

#include <cstring>
#include <span>

#include "common/base/append_bytes.h"

namespace rcuda::server {
namespace {

bool carries_number(CUjit_option option) {
  switch (option) {
    case CU_JIT_MAX_REGISTERS:
    case CU_JIT_THREADS_PER_BLOCK:
    case CU_JIT_OPTIMIZATION_LEVEL:
    case CU_JIT_TARGET_FROM_CUCONTEXT:
    case CU_JIT_TARGET:
    case CU_JIT_FALLBACK_STRATEGY:
    case CU_JIT_GENERATE_DEBUG_INFO:
    case CU_JIT_LOG_VERBOSE:
    case CU_JIT_GENERATE_LINE_INFO:
    case CU_JIT_CACHE_MODE:
    case CU_JIT_POSITION_INDEPENDENT_CODE:
    case CU_JIT_MIN_CTA_PER_SM:
    case CU_JIT_MAX_THREADS_PER_BLOCK:
    case CU_JIT_OVERRIDE_DIRECTIVE_VALUES:
      return true;
    default:
      return false;
  }
}

std::string_view text_of(const std::vector<char>& log) {
  return {log.data(), log.empty() ? 0 : ::strnlen(log.data(), log.size())};
}

}  // namespace

JitOptions::JitOptions(size_t info_bytes, size_t error_bytes)
    : info_(make_log(info_bytes, CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES)),
      error_(make_log(error_bytes, CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES)) {}

JitOptions::Log JitOptions::make_log(size_t bytes, CUjit_option buffer, CUjit_option size) {
  Log log{std::vector<char>(bytes)};
  if (bytes == 0) return log;
  names_.push_back(buffer);
  values_.push_back(log.text.data());
  log.size_index = values_.size();
  names_.push_back(size);
  values_.push_back(reinterpret_cast<void*>(bytes));
  return log;
}

void JitOptions::add(CUjit_option option, uint64_t value) {
  if (option == CU_JIT_WALL_TIME) {
    wall_time_ = values_.size();
    value = 0;
  } else if (!carries_number(option)) {
    return;
  }
  names_.push_back(option);
  values_.push_back(reinterpret_cast<void*>(value));
}

wire::JitLog JitOptions::described(const Log& log) const {
  wire::JitLog described{};
  if (log.text.empty()) return described;
  described.text_bytes = static_cast<uint32_t>(text_of(log.text).size());
  // The value is an unsigned int in place of a pointer.
  described.size_value =
      static_cast<uint32_t>(reinterpret_cast<uintptr_t>(values_[log.size_index]));
  return described;
}

void JitOptions::write_logs(std::vector<std::byte>* bytes) const {
  // The driver writes a float into the space of a pointer.
  const uintptr_t wall_time = wall_time_ ? reinterpret_cast<uintptr_t>(values_[*wall_time_]) : 0;
  const wire::JitLogs logs{described(info_), described(error_), static_cast<uint32_t>(wall_time),
                           0};
  append_bytes(bytes, std::span(&logs, 1));
  for (const Log* log : {&info_, &error_}) {
    const std::string_view text = text_of(log->text);
    append_bytes(bytes, text);
  }
}

}  // namespace rcuda::server
