#include "server/protocol/start_failure.h"

#include <cerrno>

#include <cuda.h>

namespace rcuda::server {
namespace {

bool is_lasting_cuda(int result) {
  switch (result) {
    case CUDA_ERROR_OUT_OF_MEMORY:
    case CUDA_ERROR_DEVICE_UNAVAILABLE:  // another process uses the GPU exclusively
    case CUDA_ERROR_SYSTEM_NOT_READY:    // NVIDIA's fabric manager is starting
    case CUDA_ERROR_MPS_CONNECTION_FAILED:
    case CUDA_ERROR_MPS_RPC_FAILURE:
    case CUDA_ERROR_MPS_SERVER_NOT_READY:
    case CUDA_ERROR_MPS_MAX_CLIENTS_REACHED:
    case CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED:
      return false;
    default:
      return true;
  }
}

bool is_lasting_system(int error) {
  switch (error) {
    case ENOENT:
    case ENOTDIR:
    case EACCES:
    case EPERM:
    case ENOEXEC:
    case ELIBBAD:
    case ELOOP:
    case EINVAL:
      return true;
    default:
      return false;
  }
}

}  // namespace

bool is_lasting(const Status& failure) {
  switch (failure.code()) {
    case Code::kCuda:
      return is_lasting_cuda(failure.cuda());
    case Code::kSystem:
      return is_lasting_system(failure.sys_errno());
    case Code::kOk:
    case Code::kOutOfMemory:
    case Code::kUnavailable:
    case Code::kTimeout:
      return false;
    default:
      return true;
  }
}

}  // namespace rcuda::server
