// Helpers of the generated forward_cuX functions. Internal to them.
//
// A Call is one command: its checks, routing, body and reply. It keeps the first error, so the
// generated code need not check each step; after an error nothing is sent. Lives on the caller's
// stack.
#pragma once

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include <cuda.h>

#include "api/blob.h"
#include "api/opcodes.h"
#include "api/shared.h"
#include "client/code/handles.h"
#include "client/route/find_route.h"
#include "common/base/log.h"
#include "common/cuda/return_if_error.h"
#include "common/wire/codec.h"

namespace rcuda::client {

using api::from_pointer;
using api::FunctionId;
using api::pool_attribute_bytes;
using api::tensor_elements;
using api::to_pointer;

class Call {
 public:
  Call() = default;
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  bool failed() const { return result_ != CUDA_SUCCESS; }
  CUresult result() const { return result_; }
  const Route& route() const { return *route_; }  // valid after the routing
  wire::Encoder& in() { return in_; }
  wire::Decoder& out() { return *out_; }

  // Checks. fix() stores the first error.
  void fix(CUresult result) {
    if (result_ == CUDA_SUCCESS) result_ = result;
  }
  void require(bool holds) {
    if (!holds) fix(CUDA_ERROR_INVALID_VALUE);
  }
  // `parameter`: for the log, names a parameter that must be null: "hStream of cuLaunchKernel".
  void unsupported_unless(bool holds, const char* parameter);

  // Routing: the first of these functions that names a worker decides the route.

  // Takes `route` if no route is decided yet. Returns whether the decided route leads to the worker
  // of `route`.
  bool take_route(const Route& route);
  wire::ObjectId handle(const void* handle, wire::Kind kind, CUresult if_null);
  template <typename Handle>
  wire::ObjectId handle(Handle value, wire::Kind kind, CUresult if_null) {
    return handle(static_cast<const void*>(to_pointer(value)), kind, if_null);
  }
  // Returns the stream's id. The command counts in the stream's timeline.
  wire::ObjectId stream(CUstream stream);
  // Like stream(). But if the address belongs to another worker than the current context, null and
  // CU_STREAM_LEGACY mean the legacy default stream of the address's worker. `owner`: the route of
  // the address; null: look it up. route_address() has the same parameters.
  wire::ObjectId stream_near(CUstream stream, CUdeviceptr address, const Route* owner = nullptr);
  FunctionId function(CUfunction function);
  uint32_t device(CUdevice device);
  void route_address(CUdeviceptr address, const Route* owner = nullptr);
  void route_anywhere();
  void route_location(const CUmemLocation& location);
  void route_current();                   // used if no function above chose a worker
  void pace() { client::pace(*route_); }  // called before work is sent to a stream

  // Body.
  template <typename T>
  void array(const T* items, size_t count) {
    if (items == nullptr && count != 0) {
      fix(CUDA_ERROR_INVALID_VALUE);
    } else {
      in_.array(items, count);
    }
  }
  template <typename T>
  void structs(const T* items, size_t count) {
    if (items == nullptr && count != 0) return fix(CUDA_ERROR_INVALID_VALUE);
    if (count > wire::kMaxBodyBytes / sizeof(T)) return fix(CUDA_ERROR_NOT_SUPPORTED);
    std::vector<T> copies(items, items + count);
    for (T& copy : copies) fix(to_wire(copy, *this));
    in_.array(copies.data(), copies.size());
  }
  template <typename Handle>
  void handles(const Handle* items, size_t count, wire::Kind kind) {
    if (items == nullptr && count != 0) return fix(CUDA_ERROR_INVALID_VALUE);
    if (count > wire::kMaxBodyBytes / sizeof(wire::ObjectId)) return fix(CUDA_ERROR_NOT_SUPPORTED);
    std::vector<wire::ObjectId> ids(count);
    for (size_t i = 0; i < count; ++i) ids[i] = handle(items[i], kind, CUDA_ERROR_INVALID_VALUE);
    in_.array(ids.data(), ids.size());
  }
  // Makes the object of a create call and returns its id. *handle becomes null again if the command
  // is refused or not sent.
  wire::ObjectId create(wire::Kind kind, void** handle);
  // Returns how many elements of one output array fit into the reply, at most `count`. `arrays`:
  // the number of output arrays in the reply.
  uint32_t room(size_t count, size_t element_bytes, size_t arrays) {
    return static_cast<uint32_t>(
        std::min(count, (api::kMaxReplyBytes - 256) / arrays / element_bytes));
  }
  // Like room(), for an array that must be returned completely. If the array does not fit, the call
  // fails.
  uint32_t whole(size_t count, size_t element_bytes, size_t arrays) {
    const uint32_t fits = room(count, element_bytes, arrays);
    if (fits != count) fix(CUDA_ERROR_NOT_SUPPORTED);
    return fits;
  }

  CUresult post(api::Opcode opcode);
  CUresult call(api::Opcode opcode, size_t reply_bytes);

  // Reply.
  bool answered() const { return out_.has_value() && out_->remaining() != 0; }
  void* wrap_id(wire::Kind kind) {
    return client::wrap_id(*route_, kind, out_->value<wire::ObjectId>());
  }
  template <typename T>
  void take_array(T* items, size_t room) {
    const auto found = out_->array<T>();
    if (items == nullptr || found.size() > room) return found.empty() ? void() : out_->reject();
    std::copy(found.begin(), found.end(), items);
  }
  // Elements that the worker did not fill become null.
  template <typename Handle>
  void wrap_ids(Handle* items, size_t room, wire::Kind kind) {
    const auto ids = out_->array<wire::ObjectId>();
    if (items == nullptr || ids.size() > room) return ids.empty() ? void() : out_->reject();
    for (size_t i = 0; i < room; ++i) {
      items[i] =
          from_pointer<Handle>(i < ids.size() ? client::wrap_id(*route_, kind, ids[i]) : nullptr);
    }
  }
  // Reads the first piece of a blob from the reply; read_rest() requests the other pieces.
  void take_blob(api::Blob* blob);
  CUresult read_rest(api::Blob* blob);
  CUresult bad_reply() const;
  // Retires the handle if the call has destroyed its object.
  template <typename Handle>
  static void retire_if_gone(Handle handle, wire::Kind kind, CUresult result) {
    if (api::is_gone(result)) retire(to_pointer(handle), kind);
  }

 private:
  bool may_send(api::Opcode opcode);
  void retire_created();
  void route_by(const CudaResult<Route>& found);

  std::optional<Route> route_;
  CUresult result_ = CUDA_SUCCESS;
  wire::Encoder in_;
  Reply reply_;
  std::optional<wire::Decoder> out_;
  uint64_t blob_bytes_ = 0;
  uint32_t blob_ = 0;    // the number of the blob in the worker
  uint16_t opcode_ = 0;  // of the call that was sent
  struct Created {
    void** handle = nullptr;
    wire::Kind kind = wire::Kind::kNone;
  };
  Created created_[2];
  uint32_t created_count_ = 0;
};

// Converts struct members that name objects or devices: objects are sent as ids, devices as the
// worker's ordinals. Members that emit_routing() (api/gen/client.py) uses also choose the call's
// route.
CUresult location_to_wire(CUmemLocation& location, Call& call);
void location_from_wire(CUmemLocation& location, const Call& call);
CUresult devices_to_wire(unsigned& mask, Call& call);
template <typename Handle>
CUresult handle_to_wire(Handle& handle, wire::Kind kind, Call& call) {
  const wire::ObjectId id = call.handle(handle, kind, CUDA_SUCCESS);
  if (!call.failed()) {
    handle = from_pointer<Handle>(reinterpret_cast<void*>(static_cast<uintptr_t>(id)));
  }
  return call.result();
}
template <typename Handle>
void handle_from_wire(Handle& handle, wire::Kind kind, const Call& call) {
  const auto id = static_cast<wire::ObjectId>(reinterpret_cast<uintptr_t>(to_pointer(handle)));
  handle = from_pointer<Handle>(wrap_id(call.route(), kind, id));
}

}  // namespace rcuda::client
