#include "client/forward/call.h"

#include "common/cuda/return_if_error.h"

namespace rcuda::client {

CUresult location_to_wire(CUmemLocation& location, Route* route) {
  if (location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_SUCCESS;
  Route named;
  uint32_t ordinal = 0;
  RCUDA_RETURN_IF_CUDA_ERROR(target_device(location.id, &named, &ordinal));
  if (route->session == nullptr) *route = named;
  if (route->session != named.session) return CUDA_ERROR_INVALID_DEVICE;
  location.id = static_cast<int>(ordinal);
  return CUDA_SUCCESS;
}

void location_from_wire(CUmemLocation& location, const Route* route) {
  if (location.type == CU_MEM_LOCATION_TYPE_DEVICE) {
    location.id = client_ordinal(*route, static_cast<uint32_t>(location.id));
  }
}

CUresult devices_to_wire(unsigned& mask, Route* route) {
  unsigned worker = 0;
  for (CUdevice device = 0; device < 32; ++device) {
    if ((mask >> device & 1) == 0) continue;
    Route named;
    uint32_t ordinal = 0;
    if (target_device(device, &named, &ordinal) != CUDA_SUCCESS || ordinal >= 32) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (route->session == nullptr) *route = named;
    if (route->session != named.session) return CUDA_ERROR_INVALID_VALUE;
    worker |= 1u << ordinal;
  }
  mask = worker;
  return CUDA_SUCCESS;
}

void Call::unsupported_unless(bool holds, const char* parameter) {
  if (holds || failed()) return;
  RCUDA_WARN("a call uses parameter %s, which is not supported over the network", parameter);
  fix(CUDA_ERROR_NOT_SUPPORTED);
}

wire::ObjectId Call::handle(const void* handle, wire::Kind kind, CUresult if_null) {
  if (handle == nullptr && if_null != CUDA_SUCCESS) fix(if_null);
  wire::ObjectId id = 0;
  if (!failed()) fix(resolve_handle(handle, kind, &route_, &id));
  return id;
}

wire::ObjectId Call::stream_near(CUstream stream, CUdeviceptr address, const Route* owner) {
  const bool is_default = stream == nullptr || stream == CU_STREAM_LEGACY;
  if (is_default && !failed() && route_.session == nullptr) {
    Route current, near = owner ? *owner : Route{};
    fix(target_current(&current));
    if (!failed() && !owner) fix(target_address(address, &near));
    if (!failed() && near.session != current.session) {
      route_ = near;
      return 0;
    }
  }
  return this->stream(stream);
}

FunctionId Call::function(CUfunction function) {
  FunctionId found;
  if (function == nullptr) fix(CUDA_ERROR_INVALID_HANDLE);
  if (failed()) return found;
  // A kernel stays a kernel: its function in a context may have other attributes.
  CUresult result = resolve_handle(function, wire::Kind::kKernel, &route_, &found.id);
  found.is_kernel = result != CUDA_ERROR_INVALID_HANDLE;
  if (!found.is_kernel)
    result = resolve_handle(function, wire::Kind::kFunction, &route_, &found.id);
  fix(result);
  return found;
}

uint32_t Call::device(CUdevice device) {
  Route named;
  uint32_t ordinal = 0;
  if (failed()) return 0;
  fix(target_device(device, &named, &ordinal));
  if (route_.session == nullptr) route_ = named;
  if (route_.session != named.session) fix(CUDA_ERROR_INVALID_DEVICE);
  return ordinal;
}

void Call::route_address(CUdeviceptr address, const Route* owner) {
  if (failed() || route_.session) return;
  if (owner) {
    route_ = *owner;
  } else {
    fix(target_address(address, &route_));
  }
}

void Call::route_location(const CUmemLocation& location) {
  CUmemLocation copy = location;
  if (!failed()) fix(location_to_wire(copy, &route_));
}

void Call::route_anywhere() {
  if (!failed() && route_.session == nullptr) route_ = target_anywhere();
}

void Call::route_current() {
  if (!failed() && route_.session == nullptr) fix(target_current(&route_));
}

wire::ObjectId Call::create(wire::Kind kind, void** handle) {
  wire::ObjectId id = 0;
  if (failed()) return id;
  fix(mint(route_, kind, handle, &id));
  if (!failed()) created_[created_count_++] = {*handle, kind};
  return id;
}

bool Call::may_send() {
  if (!failed() && !in_.ok()) {
    RCUDA_WARN("a call's arguments exceed %zu bytes, which one command cannot carry",
               wire::kMaxBodyBytes);
    fix(CUDA_ERROR_NOT_SUPPORTED);
  }
  if (!failed()) return true;
  for (uint32_t i = 0; i < created_count_; ++i) retire(created_[i].handle, created_[i].kind);
  return false;
}

CUresult Call::post(api::Opcode opcode) {
  if (!may_send()) return result_;
  // The result is an earlier command's error. This command has been sent, and its object will
  // exist, so nothing is retired.
  return client::post(route_, {opcode, in_.body()});
}

CUresult Call::call(api::Opcode opcode, size_t reply_bytes) {
  if (!may_send()) return result_;
  opcode_ = static_cast<uint16_t>(opcode);
  const CUresult result = client::call(route_, {opcode, in_.body()}, reply_bytes, &reply_);
  out_.emplace(reply_.body());
  if (result != CUDA_SUCCESS) {
    for (uint32_t i = 0; i < created_count_; ++i) retire(created_[i].handle, created_[i].kind);
  }
  return result;
}

void Call::take_blob(api::Blob* blob) {
  blob_bytes_ = out_->value<uint64_t>();
  const auto piece = out_->array<std::byte>();
  blob_ = out_->value<uint32_t>();
  const bool is_all = piece.size() == blob_bytes_;
  if (blob_bytes_ > api::kMaxBlobBytes || piece.size() > blob_bytes_ || is_all != (blob_ == 0)) {
    return out_->reject();
  }
  blob->assign(piece.begin(), piece.end());
}

CUresult Call::read_rest(api::Blob* blob) {
  while (blob->size() < blob_bytes_) {
    const wire::BlobReadBody body{.offset = blob->size(), .blob = blob_, .reserved = 0};
    Reply reply;
    const CUresult result = client::call(route_, body, api::kBlobPieceBytes, &reply);
    if (result != CUDA_SUCCESS) return result;
    const auto piece = reply.body();
    if (piece.empty() || piece.size() > blob_bytes_ - blob->size()) return bad_reply();
    blob->insert(blob->end(), piece.begin(), piece.end());
  }
  return CUDA_SUCCESS;
}

CUresult Call::bad_reply() const { return malformed_reply(route_, opcode_); }

}  // namespace rcuda::client
