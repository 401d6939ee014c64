// Features that neither a remote GPU nor softgpu has: objects of other APIs (external memory and
// semaphores, graphics), multicast objects and decompression. The device attributes of these
// features are 0. Each function returns the error of a driver without the feature.
//
// Objects of these kinds do not exist, so a call with a handle of one fails:
// CUDA_ERROR_INVALID_VALUE for external memory and semaphores, CUDA_ERROR_INVALID_HANDLE for
// graphics, CUDA_ERROR_NOT_SUPPORTED for multicast. Any thread; nothing blocks.
#include <cuda.h>

namespace {

CUresult initialized() {
  int count = 0;
  return cuDeviceGetCount(&count);
}

// The answer of a driver without the feature. `is_valid`: the arguments of the call are valid.
CUresult absent_if(bool is_valid) {
  if (CUresult result = initialized(); result != CUDA_SUCCESS) return result;
  return is_valid ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
}

CUresult invalid_handle() {
  const CUresult result = initialized();
  return result == CUDA_SUCCESS ? CUDA_ERROR_INVALID_HANDLE : result;
}

CUresult invalid_value() { return absent_if(false); }
CUresult absent() { return absent_if(true); }

CUresult map_graphics(unsigned count, const CUgraphicsResource* resources) {
  return count == 0 || !resources ? invalid_value() : invalid_handle();
}

}  // namespace

extern "C" {

// ---- external memory and semaphores ------------------------------------------------------------

CUresult cuImportExternalMemory(CUexternalMemory* memory,
                                const CUDA_EXTERNAL_MEMORY_HANDLE_DESC* desc) {
  return absent_if(memory && desc && desc->type >= CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD &&
                   desc->type <= CU_EXTERNAL_MEMORY_HANDLE_TYPE_NVSCIBUF && desc->size != 0 &&
                   (desc->flags & ~unsigned{CUDA_EXTERNAL_MEMORY_DEDICATED}) == 0);
}

CUresult cuExternalMemoryGetMappedBuffer(CUdeviceptr*, CUexternalMemory,
                                         const CUDA_EXTERNAL_MEMORY_BUFFER_DESC*) {
  return invalid_value();
}

CUresult cuExternalMemoryGetMappedMipmappedArray(CUmipmappedArray*, CUexternalMemory,
                                                 const CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC*) {
  return invalid_value();
}

CUresult cuDestroyExternalMemory(CUexternalMemory) { return invalid_value(); }

CUresult cuImportExternalSemaphore(CUexternalSemaphore* semaphore,
                                   const CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC* desc) {
  return absent_if(semaphore && desc && desc->type >= CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD &&
                   desc->type <= CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_TIMELINE_SEMAPHORE_WIN32 &&
                   desc->flags == 0);
}

CUresult cuSignalExternalSemaphoresAsync(const CUexternalSemaphore*,
                                         const CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS*, unsigned,
                                         CUstream) {
  return invalid_value();
}

CUresult cuWaitExternalSemaphoresAsync(const CUexternalSemaphore*,
                                       const CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS*, unsigned,
                                       CUstream) {
  return invalid_value();
}

CUresult cuDestroyExternalSemaphore(CUexternalSemaphore) { return invalid_value(); }

// ---- graphics ----------------------------------------------------------------------------------

CUresult cuGraphicsUnregisterResource(CUgraphicsResource) { return invalid_handle(); }

CUresult cuGraphicsSubResourceGetMappedArray(CUarray*, CUgraphicsResource, unsigned, unsigned) {
  return invalid_handle();
}

CUresult cuGraphicsResourceGetMappedMipmappedArray(CUmipmappedArray*, CUgraphicsResource) {
  return invalid_handle();
}

CUresult cuGraphicsResourceGetMappedPointer_v2(CUdeviceptr*, size_t*, CUgraphicsResource) {
  return invalid_handle();
}

CUresult cuGraphicsResourceSetMapFlags_v2(CUgraphicsResource, unsigned) { return invalid_handle(); }

CUresult cuGraphicsMapResources(unsigned count, CUgraphicsResource* resources, CUstream) {
  return map_graphics(count, resources);
}

CUresult cuGraphicsUnmapResources(unsigned count, CUgraphicsResource* resources, CUstream) {
  return map_graphics(count, resources);
}

// ---- multicast and decompression: refused for all arguments -------------------------------

CUresult cuMulticastCreate(CUmemGenericAllocationHandle*, const CUmulticastObjectProp*) {
  return absent();
}

CUresult cuMulticastAddDevice(CUmemGenericAllocationHandle, CUdevice) { return absent(); }

CUresult cuMulticastBindMem(CUmemGenericAllocationHandle, size_t, CUmemGenericAllocationHandle,
                            size_t, size_t, unsigned long long) {
  return absent();
}

CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle, size_t, CUdeviceptr, size_t,
                             unsigned long long) {
  return absent();
}

CUresult cuMulticastUnbind(CUmemGenericAllocationHandle, CUdevice, size_t, size_t) {
  return absent();
}

CUresult cuMulticastGetGranularity(size_t*, const CUmulticastObjectProp*,
                                   CUmulticastGranularity_flags) {
  return absent();
}

CUresult cuMemBatchDecompressAsync(CUmemDecompressParams*, size_t, unsigned, size_t*, CUstream) {
  CUdevice current;
  const CUresult result = cuCtxGetDevice(&current);
  return result == CUDA_SUCCESS ? CUDA_ERROR_NOT_SUPPORTED : result;
}

}  // extern "C"
