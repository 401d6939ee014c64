#include "common/base/status.h"

#include <system_error>

#include "common/base/limit_remedy.h"

namespace rcuda {

const char* to_string(Code code) {
  switch (code) {
    case Code::kOk:
      return "ok";
    case Code::kInvalidArgument:
      return "invalid argument";
    case Code::kNotFound:
      return "not found";
    case Code::kOutOfMemory:
      return "out of memory";
    case Code::kUnsupported:
      return "unsupported";
    case Code::kUnavailable:
      return "unavailable";
    case Code::kTimeout:
      return "timeout";
    case Code::kProtocol:
      return "protocol error";
    case Code::kCuda:
      return "CUDA error";
    case Code::kSystem:
      return "system error";
    case Code::kInternal:
      return "internal error";
    case Code::kDenied:
      return "denied";
  }
  return "unknown code";
}

Status Status::from_cuda(int cuda, std::string context) {
  Status status(Code::kCuda, std::move(context));
  status.cuda_ = cuda;
  return status;
}

Status Status::from_errno(int sys_errno, std::string context) {
  Status status(Code::kSystem, std::move(context));
  status.sys_errno_ = sys_errno;
  status.context_ += ": " + std::generic_category().message(sys_errno) + limit_remedy(sys_errno);
  return status;
}

Status Status::with_context(const std::string& outer) && {
  if (!ok()) context_.insert(0, outer + ": ");
  return std::move(*this);
}

std::string Status::message() const {
  std::string text = to_string(code_);
  if (cuda_ != 0) text += " " + std::to_string(cuda_);
  if (!context_.empty()) text.append(": ").append(context_);
  return text;
}

}  // namespace rcuda
