// Queries the parameters of the first server's NCCL (ncclParam*). The handle of a parameter is the
// address of the client's copy of the parameter's key, which is never freed.
#include <algorithm>
#include <cstring>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "client/nccl/ask.h"
#include "client/nccl/forwarded.h"
#include "client/nccl/library.h"
#include "client/process/process.h"
#include "common/base/mutex.h"

namespace rcuda::client::nccl {
namespace {

struct Handles {
  Mutex mutex;
  std::set<std::string> keys RCUDA_GUARDED_BY(mutex);  // its elements do not move
};

Handles& handles() {
  static auto* const made = new Handles;
  return *made;
}

// Returns null if the program has no such handle.
const std::string* key_of(const void* handle) {
  MutexLock lock(handles().mutex);
  for (const std::string& key : handles().keys) {
    if (&key == handle) return &key;
  }
  return nullptr;
}

Asked ask_parameter(const std::string& key, ParameterType type, int most = 0) {
  if (key.size() > kMostNameBytes) return {kInvalidArgument, kSuccess, 0, ""};
  if (!open_library().ok()) return {kSystemError, kSuccess, 0, ""};
  wire::NcclAskBody body{};
  body.value = static_cast<int32_t>(type);
  body.other = most;
  return ask(*Process::get().sessions().front(), Question::kParameter, body,
             std::as_bytes(std::span(key)));
}

template <typename T>
int get_number(void* handle, ParameterType type, T* value) {
  const std::string* const key = key_of(handle);
  if (!key || !value) return kInvalidArgument;
  const Asked asked = ask_parameter(*key, type);
  if (asked.result != kSuccess) return asked.result;
  if (asked.text.size() != sizeof *value) return kInternalError;
  std::memcpy(value, asked.text.data(), sizeof *value);
  return kSuccess;
}

}  // namespace

int ncclParamBind(void** handle, const char* key) {
  if (!handle || !key) return kInvalidArgument;
  const Asked asked = ask_parameter(key, ParameterType::kNone);
  if (asked.result != kSuccess) return asked.result;
  MutexLock lock(handles().mutex);
  *handle = const_cast<std::string*>(&*handles().keys.insert(key).first);
  return kSuccess;
}

int ncclParamGetI8(void* handle, int8_t* value) {
  return get_number(handle, ParameterType::kI8, value);
}
int ncclParamGetI16(void* handle, int16_t* value) {
  return get_number(handle, ParameterType::kI16, value);
}
int ncclParamGetI32(void* handle, int32_t* value) {
  return get_number(handle, ParameterType::kI32, value);
}
int ncclParamGetI64(void* handle, int64_t* value) {
  return get_number(handle, ParameterType::kI64, value);
}
int ncclParamGetU8(void* handle, uint8_t* value) {
  return get_number(handle, ParameterType::kU8, value);
}
int ncclParamGetU16(void* handle, uint16_t* value) {
  return get_number(handle, ParameterType::kU16, value);
}
int ncclParamGetU32(void* handle, uint32_t* value) {
  return get_number(handle, ParameterType::kU32, value);
}
int ncclParamGetU64(void* handle, uint64_t* value) {
  return get_number(handle, ParameterType::kU64, value);
}

// The string is valid until the thread's next call, as in NCCL.
int ncclParamGetStr(void* handle, const char** value) {
  thread_local std::string text;
  const std::string* const key = key_of(handle);
  if (!key || !value) return kInvalidArgument;
  Asked asked = ask_parameter(*key, ParameterType::kString);
  if (asked.result != kSuccess) return asked.result;
  text = std::move(asked.text);
  *value = text.c_str();
  return kSuccess;
}

int ncclParamGet(void* handle, void* value, int capacity, int* length) {
  const std::string* const key = key_of(handle);
  if (!key || !value || capacity < 0) return kInvalidArgument;
  const Asked asked = ask_parameter(*key, ParameterType::kBytes, capacity);
  if (length) *length = static_cast<int>(asked.value);
  if (asked.result != kSuccess) return asked.result;
  std::memcpy(value, asked.text.data(),
              std::min(asked.text.size(), static_cast<size_t>(capacity)));
  return kSuccess;
}

int ncclParamGetParameter(const char* key, const char** value, int* length) {
  thread_local std::string text;
  if (!key || !value) return kInvalidArgument;
  Asked asked = ask_parameter(key, ParameterType::kText);
  if (asked.result != kSuccess) return asked.result;
  text = std::move(asked.text);
  *value = text.c_str();
  if (length) *length = static_cast<int>(asked.value);
  return kSuccess;
}

int ncclParamGetAllParameterKeys(const char*** keys, int* count) {
  thread_local std::string texts;
  thread_local std::vector<const char*> table;
  if (!keys || !count) return kInvalidArgument;
  if (!open_library().ok()) return kSystemError;
  Asked asked = ask(*Process::get().sessions().front(), Question::kParameterKeys);
  if (asked.result != kSuccess) return asked.result;
  texts = std::move(asked.text);
  table.clear();
  for (size_t at = 0; at < texts.size(); at += std::strlen(texts.c_str() + at) + 1) {
    table.push_back(texts.c_str() + at);
  }
  *keys = table.data();
  *count = static_cast<int>(table.size());
  return kSuccess;
}

// Makes the worker print NCCL's parameters. The worker's output goes to the program's stdout.
void ncclParamDumpAll() {
  if (open_library().ok()) {
    (void)ask(*Process::get().sessions().front(), Question::kDumpParameters);
  }
}

}  // namespace rcuda::client::nccl
