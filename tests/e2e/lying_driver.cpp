// The driver of a hostile server: softgpu, but it says that its memory is at an address where the
// program has its own memory.
//
// The program names the address when it looks up the variable "lie_<hexadecimal>" of a module,
// which is not found. From then on, in this session's worker, every allocation, reservation and
// variable is at that address. The server that uses it has no guard of its own (lying_guard.cpp).
#include <cstdlib>
#include <cstring>

#include <cuda.h>
#include <dlfcn.h>

namespace {

CUdeviceptr lie = 0;
constexpr size_t kBytes = 128 << 10;  // the size of all memory at the false address

template <typename Function>
Function* real(Function*, const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}
#define REAL(function) real(static_cast<decltype(&(function))>(nullptr), #function)

bool told(CUdeviceptr* address) {
  if (lie != 0 && address) *address = lie;
  return lie != 0;
}

CUresult variable(CUdeviceptr* address, size_t* bytes, const char* name, CUresult otherwise) {
  if (std::strncmp(name, "lie_", 4) == 0) {
    lie = std::strtoull(name + 4, nullptr, 16);
    return CUDA_ERROR_NOT_FOUND;
  }
  if (!told(address)) return otherwise;
  if (bytes) *bytes = kBytes;
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

CUresult cuMemAlloc_v2(CUdeviceptr* address, size_t bytes) {
  return told(address) ? CUDA_SUCCESS : REAL(cuMemAlloc_v2)(address, bytes);
}

CUresult cuMemAllocPitch_v2(CUdeviceptr* address, size_t* pitch, size_t width, size_t height,
                            unsigned element) {
  if (!told(address)) return REAL(cuMemAllocPitch_v2)(address, pitch, width, height, element);
  *pitch = width;
  return CUDA_SUCCESS;
}

CUresult cuMemAllocAsync(CUdeviceptr* address, size_t bytes, CUstream stream) {
  return told(address) ? CUDA_SUCCESS : REAL(cuMemAllocAsync)(address, bytes, stream);
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr* address, size_t bytes, CUmemoryPool pool,
                                 CUstream stream) {
  return told(address) ? CUDA_SUCCESS : REAL(cuMemAllocFromPoolAsync)(address, bytes, pool, stream);
}

CUresult cuMemAllocManaged(CUdeviceptr* address, size_t bytes, unsigned flags) {
  return told(address) ? CUDA_SUCCESS : REAL(cuMemAllocManaged)(address, bytes, flags);
}

CUresult cuMemAddressReserve(CUdeviceptr* address, size_t bytes, size_t alignment, CUdeviceptr hint,
                             unsigned long long flags) {
  return told(address) ? CUDA_SUCCESS
                       : REAL(cuMemAddressReserve)(address, bytes, alignment, hint, flags);
}

CUresult cuGraphAddMemAllocNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                                size_t count, CUDA_MEM_ALLOC_NODE_PARAMS* parameters) {
  const CUresult result =
      REAL(cuGraphAddMemAllocNode)(node, graph, dependencies, count, parameters);
  if (result == CUDA_SUCCESS) (void)told(&parameters->dptr);
  return result;
}

CUresult cuModuleGetGlobal_v2(CUdeviceptr* address, size_t* bytes, CUmodule module,
                              const char* name) {
  const CUresult result = variable(address, bytes, name, CUDA_ERROR_UNKNOWN);
  return result == CUDA_ERROR_UNKNOWN ? REAL(cuModuleGetGlobal_v2)(address, bytes, module, name)
                                      : result;
}

CUresult cuLibraryGetGlobal(CUdeviceptr* address, size_t* bytes, CUlibrary library,
                            const char* name) {
  const CUresult result = variable(address, bytes, name, CUDA_ERROR_UNKNOWN);
  return result == CUDA_ERROR_UNKNOWN ? REAL(cuLibraryGetGlobal)(address, bytes, library, name)
                                      : result;
}

CUresult cuLibraryGetManaged(CUdeviceptr* address, size_t* bytes, CUlibrary library,
                             const char* name) {
  const CUresult result = variable(address, bytes, name, CUDA_ERROR_UNKNOWN);
  return result == CUDA_ERROR_UNKNOWN ? REAL(cuLibraryGetManaged)(address, bytes, library, name)
                                      : result;
}

// Says of the false address that it is managed memory, which a program may access at its address.
CUresult cuPointerGetAttribute(void* data, CUpointer_attribute which, CUdeviceptr address) {
  if (lie == 0 || address - lie >= kBytes) {
    return REAL(cuPointerGetAttribute)(data, which, address);
  }
  switch (which) {
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      *static_cast<unsigned*>(data) = 1;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      *static_cast<CUdeviceptr*>(data) = lie;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      *static_cast<size_t*>(data) = kBytes;
      return CUDA_SUCCESS;
    default:
      return REAL(cuPointerGetAttribute)(data, which, address);
  }
}

}  // extern "C"
