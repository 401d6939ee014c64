// Helpers that only the generated handlers use.
#pragma once

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include <cuda.h>

#include "api/shared.h"
#include "common/wire/codec.h"
#include "server/executor/core/dispatch.h"

namespace rcuda::server {

using api::FunctionId;
using api::is_gone;
using api::kMaxReplyBytes;
using api::pool_attribute_bytes;
using api::tensor_elements;
using api::to_pointer;

// Translates ids to the driver's handles and keeps the first error.
class Objects {
 public:
  explicit Objects(Executor& executor) : executor_(executor) {}

  template <typename Handle>
  Handle find(wire::Kind kind, wire::ObjectId id, bool required) {
    return api::from_pointer<Handle>(find(kind, id, required));
  }
  template <typename Handle>
  std::vector<Handle> find_all(wire::Kind kind, std::span<const wire::ObjectId> ids) {
    std::vector<Handle> handles;
    handles.reserve(ids.size());
    for (const wire::ObjectId id : ids) handles.push_back(find<Handle>(kind, id, true));
    return handles;
  }
  CUfunction find_function(const FunctionId& id);
  CUdevice find_device(uint32_t ordinal);

  void fix(CUresult result) {
    if (result_ == CUDA_SUCCESS) result_ = result;
  }
  bool failed() const { return result_ != CUDA_SUCCESS; }
  CUresult result() const { return result_; }

 private:
  void* find(wire::Kind kind, wire::ObjectId id, bool required);

  Executor& executor_;
  CUresult result_ = CUDA_SUCCESS;
};

// Returns the first of the functions that is not null. Older drivers have some functions only under
// the name of an earlier version.
template <typename Function>
Function first_of(Function function) {
  return function;
}
template <typename Function, typename... Older>
Function first_of(Function function, Older... older) {
  return function != nullptr ? function : first_of(older...);
}

// Copies an array of the command, so that its elements can be translated for the driver.
template <typename T>
std::vector<T> copy_array(wire::Decoder& in) {
  const std::span<const T> items = in.array<T>();
  return {items.begin(), items.end()};
}

template <typename Handle>
void encode_names(Executor& executor, wire::Encoder& out, wire::Kind kind, const Handle* handles,
                  size_t count) {
  std::vector<wire::ObjectId> ids(count);
  for (size_t i = 0; i < count; ++i) ids[i] = name(executor, kind, to_pointer(handles[i]));
  out.array(ids.data(), ids.size());
}

inline void encode_blob(Executor& executor, wire::Encoder& out, Blob blob) {
  const size_t piece = std::min(blob.size(), api::kBlobPieceBytes);
  const bool is_all = piece == blob.size();
  out.value<uint64_t>(blob.size());
  out.array(blob.data(), piece);
  out.value<uint32_t>(is_all ? 0 : keep_blob(executor, std::move(blob)));
}

// Pops the context that cuCtxCreate has pushed: the worker tracks the current context itself.
void leave_created_context(Executor& executor, CUresult result);

CUresult location_from_wire(CUmemLocation& location, Executor& executor);
void location_to_wire(CUmemLocation& location, Executor& executor);
CUresult devices_from_wire(unsigned& mask, Executor& executor);
// `argument` is the client's number of a host function. Replaces `function` and `argument` by those
// that the driver gets.
void callback_from_wire(CUhostFn& function, void*& argument, Executor& executor);
template <typename Handle>
CUresult handle_from_wire(Handle& handle, wire::Kind kind, Executor& executor) {
  const auto id = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(to_pointer(handle)));
  void* found = nullptr;
  if (id > ~wire::ObjectId{0}) return CUDA_ERROR_INVALID_HANDLE;
  const CUresult result = lookup(executor, kind, static_cast<wire::ObjectId>(id), &found);
  handle = api::from_pointer<Handle>(found);
  return result;
}
template <typename Handle>
void handle_to_wire(Handle& handle, wire::Kind kind, Executor& executor) {
  const wire::ObjectId id = name(executor, kind, to_pointer(handle));
  handle = api::from_pointer<Handle>(reinterpret_cast<void*>(static_cast<uintptr_t>(id)));
}

}  // namespace rcuda::server
