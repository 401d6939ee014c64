// cuGetErrorName and cuGetErrorString. Both work before cuInit.
#include <algorithm>
#include <iterator>

#include <cuda.h>

namespace {

struct ErrorText {
  CUresult code;
  const char* name;
  const char* text;
};

#define ERROR_TEXT(code, text) \
  { code, #code, text }
// Sorted by code. The texts of common errors are the driver's: programs print them and tests
// compare them.
constexpr ErrorText kErrors[] = {
    ERROR_TEXT(CUDA_SUCCESS, "no error"),
    ERROR_TEXT(CUDA_ERROR_INVALID_VALUE, "invalid argument"),
    ERROR_TEXT(CUDA_ERROR_OUT_OF_MEMORY, "out of memory"),
    ERROR_TEXT(CUDA_ERROR_NOT_INITIALIZED, "initialization error"),
    ERROR_TEXT(CUDA_ERROR_DEINITIALIZED, "driver shutting down"),
    ERROR_TEXT(CUDA_ERROR_PROFILER_DISABLED, "profiler disabled"),
    ERROR_TEXT(CUDA_ERROR_PROFILER_NOT_INITIALIZED, "profiler not initialized"),
    ERROR_TEXT(CUDA_ERROR_PROFILER_ALREADY_STARTED, "profiler already started"),
    ERROR_TEXT(CUDA_ERROR_PROFILER_ALREADY_STOPPED, "profiler already stopped"),
    ERROR_TEXT(CUDA_ERROR_STUB_LIBRARY, "the loaded driver is a stub library"),
    ERROR_TEXT(CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER, "the call requires a newer driver"),
    ERROR_TEXT(CUDA_ERROR_DEVICE_UNAVAILABLE, "the device is busy or unavailable"),
    ERROR_TEXT(CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected"),
    ERROR_TEXT(CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal"),
    ERROR_TEXT(CUDA_ERROR_DEVICE_NOT_LICENSED, "device without a valid license"),
    ERROR_TEXT(CUDA_ERROR_INVALID_IMAGE, "device kernel image is invalid"),
    ERROR_TEXT(CUDA_ERROR_INVALID_CONTEXT, "invalid device context"),
    ERROR_TEXT(CUDA_ERROR_CONTEXT_ALREADY_CURRENT, "context already current"),
    ERROR_TEXT(CUDA_ERROR_MAP_FAILED, "mapping of buffer object failed"),
    ERROR_TEXT(CUDA_ERROR_UNMAP_FAILED, "unmapping of buffer object failed"),
    ERROR_TEXT(CUDA_ERROR_ARRAY_IS_MAPPED, "array is mapped"),
    ERROR_TEXT(CUDA_ERROR_ALREADY_MAPPED, "resource already mapped"),
    ERROR_TEXT(CUDA_ERROR_NO_BINARY_FOR_GPU,
               "no kernel image is available for execution on the device"),
    ERROR_TEXT(CUDA_ERROR_ALREADY_ACQUIRED, "resource already acquired"),
    ERROR_TEXT(CUDA_ERROR_NOT_MAPPED, "resource not mapped"),
    ERROR_TEXT(CUDA_ERROR_NOT_MAPPED_AS_ARRAY, "resource not mapped as array"),
    ERROR_TEXT(CUDA_ERROR_NOT_MAPPED_AS_POINTER, "resource not mapped as pointer"),
    ERROR_TEXT(CUDA_ERROR_ECC_UNCORRECTABLE, "uncorrectable ECC error encountered"),
    ERROR_TEXT(CUDA_ERROR_UNSUPPORTED_LIMIT, "limit is not supported on this architecture"),
    ERROR_TEXT(CUDA_ERROR_CONTEXT_ALREADY_IN_USE, "exclusive-thread device already in use"),
    ERROR_TEXT(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED,
               "peer access is not supported between these two devices"),
    ERROR_TEXT(CUDA_ERROR_INVALID_PTX, "a PTX JIT compilation failed"),
    ERROR_TEXT(CUDA_ERROR_INVALID_GRAPHICS_CONTEXT, "invalid graphics context"),
    ERROR_TEXT(CUDA_ERROR_NVLINK_UNCORRECTABLE, "uncorrectable NVLink error detected"),
    ERROR_TEXT(CUDA_ERROR_JIT_COMPILER_NOT_FOUND, "PTX JIT compiler library not found"),
    ERROR_TEXT(CUDA_ERROR_UNSUPPORTED_PTX_VERSION, "the PTX was made by an unsupported toolchain"),
    ERROR_TEXT(CUDA_ERROR_JIT_COMPILATION_DISABLED, "PTX JIT compilation was disabled"),
    ERROR_TEXT(CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY, "execution affinity is not supported"),
    ERROR_TEXT(CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC,
               "device-side synchronization is not supported by the PTX"),
    ERROR_TEXT(CUDA_ERROR_CONTAINED, "an error was contained to this process"),
    ERROR_TEXT(CUDA_ERROR_INVALID_SOURCE, "device kernel image is invalid"),
    ERROR_TEXT(CUDA_ERROR_FILE_NOT_FOUND, "file not found"),
    ERROR_TEXT(CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND, "shared object symbol not found"),
    ERROR_TEXT(CUDA_ERROR_SHARED_OBJECT_INIT_FAILED, "shared object initialization failed"),
    ERROR_TEXT(CUDA_ERROR_OPERATING_SYSTEM, "OS call failed or operation not supported on this OS"),
    ERROR_TEXT(CUDA_ERROR_INVALID_HANDLE, "invalid resource handle"),
    ERROR_TEXT(CUDA_ERROR_ILLEGAL_STATE, "the operation cannot be performed in the present state"),
    ERROR_TEXT(CUDA_ERROR_LOSSY_QUERY, "the query would lose information"),
    ERROR_TEXT(CUDA_ERROR_NOT_FOUND, "named symbol not found"),
    ERROR_TEXT(CUDA_ERROR_NOT_READY, "device not ready"),
    ERROR_TEXT(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"),
    ERROR_TEXT(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "too many resources requested for launch"),
    ERROR_TEXT(CUDA_ERROR_LAUNCH_TIMEOUT, "the launch timed out and was terminated"),
    ERROR_TEXT(CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING, "launch uses incompatible texturing mode"),
    ERROR_TEXT(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "peer access is already enabled"),
    ERROR_TEXT(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, "peer access has not been enabled"),
    ERROR_TEXT(CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE,
               "cannot set while device is active in this process"),
    ERROR_TEXT(CUDA_ERROR_CONTEXT_IS_DESTROYED, "context is destroyed"),
    ERROR_TEXT(CUDA_ERROR_ASSERT, "device-side assert triggered"),
    ERROR_TEXT(CUDA_ERROR_TOO_MANY_PEERS, "peer mapping resources exhausted"),
    ERROR_TEXT(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,
               "part or all of the requested memory range is already mapped"),
    ERROR_TEXT(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED,
               "pointer does not correspond to a registered memory region"),
    ERROR_TEXT(CUDA_ERROR_HARDWARE_STACK_ERROR, "hardware stack error"),
    ERROR_TEXT(CUDA_ERROR_ILLEGAL_INSTRUCTION, "an illegal instruction was encountered"),
    ERROR_TEXT(CUDA_ERROR_MISALIGNED_ADDRESS, "misaligned address"),
    ERROR_TEXT(CUDA_ERROR_INVALID_ADDRESS_SPACE,
               "operation not supported on global/shared address space"),
    ERROR_TEXT(CUDA_ERROR_INVALID_PC, "invalid program counter"),
    ERROR_TEXT(CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure"),
    ERROR_TEXT(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, "too many blocks in cooperative launch"),
    ERROR_TEXT(CUDA_ERROR_TENSOR_MEMORY_LEAK, "tensor memory was not freed"),
    ERROR_TEXT(CUDA_ERROR_NOT_PERMITTED, "operation not permitted"),
    ERROR_TEXT(CUDA_ERROR_NOT_SUPPORTED, "operation not supported"),
    ERROR_TEXT(CUDA_ERROR_SYSTEM_NOT_READY, "system not yet initialized"),
    ERROR_TEXT(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, "driver components do not match"),
    ERROR_TEXT(CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE,
               "forward compatibility is not supported on this hardware"),
    ERROR_TEXT(CUDA_ERROR_MPS_CONNECTION_FAILED, "no connection to the MPS control daemon"),
    ERROR_TEXT(CUDA_ERROR_MPS_RPC_FAILURE, "MPS: remote call failed"),
    ERROR_TEXT(CUDA_ERROR_MPS_SERVER_NOT_READY, "MPS: server not ready"),
    ERROR_TEXT(CUDA_ERROR_MPS_MAX_CLIENTS_REACHED, "MPS: too many clients"),
    ERROR_TEXT(CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED, "MPS: too many connections"),
    ERROR_TEXT(CUDA_ERROR_MPS_CLIENT_TERMINATED, "MPS: the server terminated this client"),
    ERROR_TEXT(CUDA_ERROR_CDP_NOT_SUPPORTED, "dynamic parallelism is not supported"),
    ERROR_TEXT(CUDA_ERROR_CDP_VERSION_MISMATCH, "versions of dynamic parallelism do not match"),
    ERROR_TEXT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
               "operation not permitted when stream is capturing"),
    ERROR_TEXT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
               "operation failed due to a previous error during capture"),
    ERROR_TEXT(CUDA_ERROR_STREAM_CAPTURE_MERGE,
               "operation would result in a merge of separate capture sequences"),
    ERROR_TEXT(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED,
               "capture was not ended in the same stream as it began"),
    ERROR_TEXT(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "capturing stream has unjoined work"),
    ERROR_TEXT(CUDA_ERROR_STREAM_CAPTURE_ISOLATION,
               "dependency created on uncaptured work in another stream"),
    ERROR_TEXT(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
               "operation would make the legacy stream depend on a capturing blocking stream"),
    ERROR_TEXT(CUDA_ERROR_CAPTURED_EVENT,
               "operation not permitted on an event last recorded in a capturing stream"),
    ERROR_TEXT(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD,
               "attempt to terminate a thread-local capture sequence from another thread"),
    ERROR_TEXT(CUDA_ERROR_TIMEOUT, "wait operation timed out"),
    ERROR_TEXT(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE,
               "the graph update was not performed because it included changes which violated "
               "constraints specific to instantiated graph update"),
    ERROR_TEXT(CUDA_ERROR_EXTERNAL_DEVICE, "an external device failed"),
    ERROR_TEXT(CUDA_ERROR_INVALID_CLUSTER_SIZE, "invalid cluster size"),
    ERROR_TEXT(CUDA_ERROR_FUNCTION_NOT_LOADED, "the function is not loaded"),
    ERROR_TEXT(CUDA_ERROR_INVALID_RESOURCE_TYPE, "invalid resource type"),
    ERROR_TEXT(CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION, "invalid resource configuration"),
    ERROR_TEXT(CUDA_ERROR_KEY_ROTATION, "key rotation in progress"),
    ERROR_TEXT(CUDA_ERROR_UNKNOWN, "unknown error"),
};
#undef ERROR_TEXT

const ErrorText* find(CUresult code) {
  const ErrorText* found =
      std::lower_bound(std::begin(kErrors), std::end(kErrors), code,
                       [](const ErrorText& error, CUresult wanted) { return error.code < wanted; });
  return found != std::end(kErrors) && found->code == code ? found : nullptr;
}

}  // namespace

extern "C" {

CUresult CUDAAPI cuGetErrorName(CUresult error, const char** name) {
  if (!name) return CUDA_ERROR_INVALID_VALUE;
  const ErrorText* found = find(error);
  *name = found ? found->name : nullptr;
  return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuGetErrorString(CUresult error, const char** text) {
  if (!text) return CUDA_ERROR_INVALID_VALUE;
  const ErrorText* found = find(error);
  *text = found ? found->text : nullptr;
  return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // extern "C"
