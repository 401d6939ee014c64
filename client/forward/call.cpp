#include "client/forward/call.h"

#include <utility>

#include "api/opcodes.h"
#include "common/base/units.h"
#include "common/cuda/return_if_error.h"

namespace rcuda::client {

CUresult location_to_wire(CUmemLocation& location, Call& call) {
  if (location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_SUCCESS;
  location.id = static_cast<int>(call.device(location.id));
  return call.result();
}

void location_from_wire(CUmemLocation& location, const Call& call) {
  if (location.type == CU_MEM_LOCATION_TYPE_DEVICE) {
    location.id = client_ordinal(call.route(), static_cast<uint32_t>(location.id));
  }
}

CUresult devices_to_wire(unsigned& mask, Call& call) {
  unsigned worker = 0;
  for (CUdevice device = 0; device < 32; ++device) {
    if ((mask >> device & 1) == 0) continue;
    uint32_t ordinal = 0;
    const auto route = find_device_route(device, &ordinal);
    if (!route || ordinal >= 32 || !call.take_route(*route)) return CUDA_ERROR_INVALID_VALUE;
    worker |= 1u << ordinal;
  }
  mask = worker;
  return CUDA_SUCCESS;
}

void Call::unsupported_unless(bool holds, const char* parameter) {
  if (holds || failed()) return;
  RCUDA_WARN("rcuda supports only NULL as %s: the call returns CUDA_ERROR_NOT_SUPPORTED",
             parameter);
  fix(CUDA_ERROR_NOT_SUPPORTED);
}

void Call::route_by(const CudaResult<Route>& found) {
  if (found) {
    route_.emplace(*found);
  } else {
    fix(found.result());
  }
}

bool Call::take_route(const Route& route) {
  if (!route_) route_.emplace(route);
  return route_->session == route.session;
}

wire::ObjectId Call::handle(const void* handle, wire::Kind kind, CUresult if_null) {
  if (handle == nullptr && if_null != CUDA_SUCCESS) fix(if_null);
  if (kind == wire::Kind::kStream) {
    return stream(static_cast<CUstream>(const_cast<void*>(handle)));
  }
  if (handle == nullptr) return 0;
  if (!failed() && !route_) route_by(find_handle_route(handle, kind));
  wire::ObjectId id = 0;
  if (!failed()) fix(resolve_handle(handle, kind, *route_, &id));
  return id;
}

wire::ObjectId Call::stream(CUstream stream) {
  if (failed()) return 0;
  const auto found = route_ ? find_stream_route(stream, *route_) : find_stream_route(stream);
  fix(found.result());
  if (!found) return 0;
  route_.emplace(*found);
  return found->id;
}

wire::ObjectId Call::stream_near(CUstream stream, CUdeviceptr address, const Route* owner) {
  const bool is_default = stream == nullptr || stream == CU_STREAM_LEGACY;
  if (is_default && !failed() && !route_) {
    const auto current = find_current_route();
    fix(current.result());
    if (failed()) return 0;
    const auto near = owner ? CudaResult<Route>(*owner) : find_address_route(address);
    fix(near.result());
    if (failed()) return 0;
    if (near->session != current->session) {
      route_.emplace(*near);
      return 0;
    }
  }
  return this->stream(stream);
}

FunctionId Call::function(CUfunction function) {
  FunctionId found;
  // Send a kernel as a kernel, not as its function in the context: the function may have other
  // attributes.
  found.is_kernel = is_kernel(function);
  found.id = handle(function, found.is_kernel ? wire::Kind::kKernel : wire::Kind::kFunction,
                    CUDA_ERROR_INVALID_HANDLE);
  return found;
}

uint32_t Call::device(CUdevice device) {
  if (failed()) return 0;
  uint32_t ordinal = 0;
  const auto route = find_device_route(device, &ordinal);
  fix(route.result());
  if (route && !take_route(*route)) fix(CUDA_ERROR_INVALID_DEVICE);
  return ordinal;
}

void Call::route_address(CUdeviceptr address, const Route* owner) {
  if (failed() || route_) return;
  route_by(owner ? CudaResult<Route>(*owner) : find_address_route(address));
}

void Call::route_location(const CUmemLocation& location) {
  CUmemLocation copy = location;
  if (!failed()) fix(location_to_wire(copy, *this));
}

void Call::route_anywhere() {
  if (!failed() && !route_) route_by(find_any_route());
}

void Call::route_current() {
  if (!failed() && !route_) route_by(find_current_route());
}

wire::ObjectId Call::create(wire::Kind kind, void** handle) {
  wire::ObjectId id = 0;
  if (failed()) return id;
  fix(mint(*route_, kind, handle, &id));
  if (!failed()) created_[created_count_++] = {handle, kind};
  return id;
}

bool Call::may_send(api::Opcode opcode) {
  if (!failed() && !in_.ok()) {
    RCUDA_WARN(
        "the arguments of a call of %s exceed %s, the limit of rcuda: the call returns "
        "CUDA_ERROR_NOT_SUPPORTED",
        api::opcode_name(static_cast<uint16_t>(opcode)),
        exact_bytes_text(wire::kMaxBodyBytes).c_str());
    fix(CUDA_ERROR_NOT_SUPPORTED);
  }
  if (failed()) retire_created();
  return !failed();
}

void Call::retire_created() {
  for (uint32_t i = 0; i < created_count_; ++i) {
    retire(std::exchange(*created_[i].handle, nullptr), created_[i].kind);
  }
}

CUresult Call::post(api::Opcode opcode) {
  if (!may_send(opcode)) return result_;
  bool refused = false;
  const CUresult result = client::post(*route_, {opcode, in_.body()}, &refused);
  // If this command was not refused, `result` is the error of an earlier command, and the worker
  // makes the object.
  if (refused) retire_created();
  return result;
}

CUresult Call::call(api::Opcode opcode, size_t reply_bytes) {
  if (!may_send(opcode)) return result_;
  opcode_ = static_cast<uint16_t>(opcode);
  const CUresult result = client::call(*route_, {opcode, in_.body()}, reply_bytes, &reply_);
  out_.emplace(reply_.body());
  if (result != CUDA_SUCCESS) retire_created();
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
    RCUDA_RETURN_IF_CUDA_ERROR(client::call(*route_, body, api::kBlobPieceBytes, &reply));
    const auto piece = reply.body();
    if (piece.empty() || piece.size() > blob_bytes_ - blob->size()) return bad_reply();
    blob->insert(blob->end(), piece.begin(), piece.end());
  }
  return CUDA_SUCCESS;
}

CUresult Call::bad_reply() const { return malformed_reply(*route_, opcode_); }

}  // namespace rcuda::client
