// The memcpy family. Every entry point says what it is given; client/memory does the rest.

#include "client/memory/copy.h"

#include <cuda.h>


using namespace rcuda::client;  // NOLINT: entry points live outside every namespace

namespace {

uint64_t address_of(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer); }

CUresult linear(uint64_t destination, Side destination_side, uint64_t source, Side source_side,
                size_t bytes, CUstream stream, bool synchronous) {
  LinearCopy copy;
  copy.destination = destination;
  copy.destination_side = destination_side;
  copy.source = source;
  copy.source_side = source_side;
  copy.bytes = bytes;
  copy.stream = stream;
  copy.synchronous = synchronous;
  return copy_linear(copy);
}

CUDA_MEMCPY3D_PEER as_peer(const CUDA_MEMCPY3D& copy) {
  CUDA_MEMCPY3D_PEER peer{};
  peer.srcXInBytes = copy.srcXInBytes;
  peer.srcY = copy.srcY;
  peer.srcZ = copy.srcZ;
  peer.srcLOD = copy.srcLOD;
  peer.srcMemoryType = copy.srcMemoryType;
  peer.srcHost = copy.srcHost;
  peer.srcDevice = copy.srcDevice;
  peer.srcArray = copy.srcArray;
  peer.srcPitch = copy.srcPitch;
  peer.srcHeight = copy.srcHeight;
  peer.dstXInBytes = copy.dstXInBytes;
  peer.dstY = copy.dstY;
  peer.dstZ = copy.dstZ;
  peer.dstLOD = copy.dstLOD;
  peer.dstMemoryType = copy.dstMemoryType;
  peer.dstHost = copy.dstHost;
  peer.dstDevice = copy.dstDevice;
  peer.dstArray = copy.dstArray;
  peer.dstPitch = copy.dstPitch;
  peer.dstHeight = copy.dstHeight;
  peer.WidthInBytes = copy.WidthInBytes;
  peer.Height = copy.Height;
  peer.Depth = copy.Depth;
  return peer;
}

CUDA_MEMCPY3D_PEER as_peer(const CUDA_MEMCPY2D& copy) {
  CUDA_MEMCPY3D_PEER peer{};
  peer.srcXInBytes = copy.srcXInBytes;
  peer.srcY = copy.srcY;
  peer.srcMemoryType = copy.srcMemoryType;
  peer.srcHost = copy.srcHost;
  peer.srcDevice = copy.srcDevice;
  peer.srcArray = copy.srcArray;
  peer.srcPitch = copy.srcPitch;
  peer.dstXInBytes = copy.dstXInBytes;
  peer.dstY = copy.dstY;
  peer.dstMemoryType = copy.dstMemoryType;
  peer.dstHost = copy.dstHost;
  peer.dstDevice = copy.dstDevice;
  peer.dstArray = copy.dstArray;
  peer.dstPitch = copy.dstPitch;
  peer.WidthInBytes = copy.WidthInBytes;
  peer.Height = copy.Height;
  peer.Depth = 1;
  return peer;
}

// One row between an array and an address or another array.
CUDA_MEMCPY3D_PEER array_row(size_t bytes) {
  CUDA_MEMCPY3D_PEER copy{};
  copy.WidthInBytes = bytes;
  copy.Height = 1;
  copy.Depth = 1;
  return copy;
}

}  // namespace

extern "C" {

// ---- linear ------------------------------------------------------------------------------------

CUresult cuMemcpy(CUdeviceptr destination, CUdeviceptr source, size_t bytes) {
  return linear(destination, Side::kAny, source, Side::kAny, bytes, nullptr, true);
}

CUresult cuMemcpyAsync(CUdeviceptr destination, CUdeviceptr source, size_t bytes, CUstream stream) {
  return linear(destination, Side::kAny, source, Side::kAny, bytes, stream, false);
}

CUresult cuMemcpyHtoD_v2(CUdeviceptr destination, const void* source, size_t bytes) {
  return linear(destination, Side::kDevice, address_of(source), Side::kHost, bytes, nullptr, true);
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr destination, const void* source, size_t bytes,
                              CUstream stream) {
  return linear(destination, Side::kDevice, address_of(source), Side::kHost, bytes, stream, false);
}

CUresult cuMemcpyDtoH_v2(void* destination, CUdeviceptr source, size_t bytes) {
  return linear(address_of(destination), Side::kHost, source, Side::kDevice, bytes, nullptr, true);
}

CUresult cuMemcpyDtoHAsync_v2(void* destination, CUdeviceptr source, size_t bytes, CUstream stream) {
  return linear(address_of(destination), Side::kHost, source, Side::kDevice, bytes, stream, false);
}

CUresult cuMemcpyDtoD_v2(CUdeviceptr destination, CUdeviceptr source, size_t bytes) {
  return linear(destination, Side::kDevice, source, Side::kDevice, bytes, nullptr, true);
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr destination, CUdeviceptr source, size_t bytes,
                              CUstream stream) {
  return linear(destination, Side::kDevice, source, Side::kDevice, bytes, stream, false);
}

// Addresses say which device they belong to; the contexts add nothing.
CUresult cuMemcpyPeer(CUdeviceptr destination, CUcontext, CUdeviceptr source, CUcontext,
                      size_t bytes) {
  return linear(destination, Side::kDevice, source, Side::kDevice, bytes, nullptr, true);
}

CUresult cuMemcpyPeerAsync(CUdeviceptr destination, CUcontext, CUdeviceptr source, CUcontext,
                           size_t bytes, CUstream stream) {
  return linear(destination, Side::kDevice, source, Side::kDevice, bytes, stream, false);
}

// ---- shapes ------------------------------------------------------------------------------------

CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D* copy) {
  return copy ? copy_shape(as_peer(*copy), nullptr, true) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D* copy) { return cuMemcpy2D_v2(copy); }

CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D* copy, CUstream stream) {
  return copy ? copy_shape(as_peer(*copy), stream, false) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D* copy) {
  return copy ? copy_shape(as_peer(*copy), nullptr, true) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D* copy, CUstream stream) {
  return copy ? copy_shape(as_peer(*copy), stream, false) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemcpy3DPeer(const CUDA_MEMCPY3D_PEER* copy) {
  return copy ? copy_shape(*copy, nullptr, true) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER* copy, CUstream stream) {
  return copy ? copy_shape(*copy, stream, false) : CUDA_ERROR_INVALID_VALUE;
}

// ---- one-dimensional array copies --------------------------------------------------------------

CUresult cuMemcpyHtoAAsync_v2(CUarray destination, size_t offset, const void* source, size_t bytes,
                              CUstream stream) {
  CUDA_MEMCPY3D_PEER copy = array_row(bytes);
  copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
  copy.dstArray = destination;
  copy.dstXInBytes = offset;
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = source;
  return copy_shape(copy, stream, false);
}

CUresult cuMemcpyHtoA_v2(CUarray destination, size_t offset, const void* source, size_t bytes) {
  return cuMemcpyHtoAAsync_v2(destination, offset, source, bytes, nullptr);
}

CUresult cuMemcpyAtoHAsync_v2(void* destination, CUarray source, size_t offset, size_t bytes,
                              CUstream stream) {
  CUDA_MEMCPY3D_PEER copy = array_row(bytes);
  copy.srcMemoryType = CU_MEMORYTYPE_ARRAY;
  copy.srcArray = source;
  copy.srcXInBytes = offset;
  copy.dstMemoryType = CU_MEMORYTYPE_HOST;
  copy.dstHost = destination;
  return copy_shape(copy, stream, false);
}

CUresult cuMemcpyAtoH_v2(void* destination, CUarray source, size_t offset, size_t bytes) {
  CUDA_MEMCPY3D_PEER copy = array_row(bytes);
  copy.srcMemoryType = CU_MEMORYTYPE_ARRAY;
  copy.srcArray = source;
  copy.srcXInBytes = offset;
  copy.dstMemoryType = CU_MEMORYTYPE_HOST;
  copy.dstHost = destination;
  return copy_shape(copy, nullptr, true);
}

CUresult cuMemcpyDtoA_v2(CUarray destination, size_t offset, CUdeviceptr source, size_t bytes) {
  CUDA_MEMCPY3D_PEER copy = array_row(bytes);
  copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
  copy.dstArray = destination;
  copy.dstXInBytes = offset;
  copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = source;
  return copy_shape(copy, nullptr, true);
}

CUresult cuMemcpyAtoD_v2(CUdeviceptr destination, CUarray source, size_t offset, size_t bytes) {
  CUDA_MEMCPY3D_PEER copy = array_row(bytes);
  copy.srcMemoryType = CU_MEMORYTYPE_ARRAY;
  copy.srcArray = source;
  copy.srcXInBytes = offset;
  copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.dstDevice = destination;
  return copy_shape(copy, nullptr, true);
}

CUresult cuMemcpyAtoA_v2(CUarray destination, size_t destination_offset, CUarray source,
                         size_t source_offset, size_t bytes) {
  CUDA_MEMCPY3D_PEER copy = array_row(bytes);
  copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
  copy.dstArray = destination;
  copy.dstXInBytes = destination_offset;
  copy.srcMemoryType = CU_MEMORYTYPE_ARRAY;
  copy.srcArray = source;
  copy.srcXInBytes = source_offset;
  return copy_shape(copy, nullptr, true);
}

}  // extern "C"
