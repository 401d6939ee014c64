#include "client/code/functions.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "client/objects/arena.h"
#include "client/session/capture_answers.h"
#include "common/cuda/return_if_error.h"

namespace rcuda::client {

void note_attribute(FunctionInfo& info, int which, int value) {
  if (which < 0 || which >= static_cast<int>(info.attributes.size())) return;
  info.attributes[static_cast<size_t>(which)].store(value, std::memory_order_relaxed);
}

namespace {

// Returns false if the answer is malformed.
bool read_function_info(std::span<const std::byte> answer, FunctionInfo* info) {
  // The body of FunctionInfoReply, which precedes the parameters.
  struct Fixed {
    uint32_t parameter_count, reserved;
    int32_t attributes[wire::kFunctionAttributeCount];
  } fixed;
  if (answer.size() < sizeof fixed) return false;
  std::memcpy(&fixed, answer.data(), sizeof fixed);
  if (fixed.parameter_count > (answer.size() - sizeof fixed) / sizeof(wire::ParameterInfo)) {
    return false;
  }
  info->parameters.resize(fixed.parameter_count);
  if (fixed.parameter_count) {
    std::memcpy(info->parameters.data(), answer.data() + sizeof fixed,
                fixed.parameter_count * sizeof(wire::ParameterInfo));
  }
  for (const wire::ParameterInfo& parameter : info->parameters) {
    const uint64_t end = uint64_t{parameter.offset_bytes} + parameter.size_bytes;
    if (end > wire::kMaxParameterBytes) return false;
    info->parameter_bytes = std::max(info->parameter_bytes, static_cast<uint32_t>(end));
  }
  for (size_t i = 0; i < info->attributes.size(); ++i) {
    info->attributes[i].store(fixed.attributes[i], std::memory_order_relaxed);
  }
  return true;
}

}  // namespace

CUresult FunctionQuestion::send(Session& session, wire::ObjectId context, wire::ObjectId owner,
                                bool is_kernel, const char* name) {
  const size_t length = std::strlen(name);
  if (length > 32768) return CUDA_ERROR_NOT_FOUND;
  session_ = &session;
  kind_ = is_kernel ? wire::Kind::kKernel : wire::Kind::kFunction;
  found_ = std::make_unique<FunctionInfo>();
  found_->session = &session;
  found_->id = session.ids().mint(kind_);
  if (found_->id == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  wire::FunctionInfoBody body{};
  body.object = found_->id;
  body.owner = owner;
  body.is_kernel = is_kernel;
  body.name_bytes = static_cast<uint16_t>(length);
  session.begin(session.in_context(context), {body, std::as_bytes(std::span(name, length))},
                {.reply_bytes = wire::ClientWindow::kLargeReplyBytes - 64}, &call_);
  return CUDA_SUCCESS;
}

CUresult FunctionQuestion::answer(std::unique_ptr<FunctionInfo>* info) {
  Reply reply;
  CUresult result = session_->finish(call_, &reply);
  if (result == CUDA_SUCCESS && !read_function_info(reply.body(), found_.get())) {
    result = CUDA_ERROR_UNKNOWN;
  }
  if (result == CUDA_SUCCESS) {
    *info = std::move(found_);
  } else {
    session_->ids().release(kind_, found_->id);
  }
  return result;
}

CUresult ask_function(Session& session, wire::ObjectId context, wire::ObjectId owner,
                      bool is_kernel, const char* name, std::unique_ptr<FunctionInfo>* info) {
  FunctionQuestion question;
  RCUDA_RETURN_IF_CUDA_ERROR(question.send(session, context, owner, is_kernel, name));
  CUresult result = question.answer(info);
  if (result == CUDA_ERROR_NOT_READY) result = CUDA_ERROR_INVALID_HANDLE;  // unknown `owner`
  if (result != CUDA_SUCCESS) note_refusal(result);
  return result;
}

CUresult resolve_callable(CUfunction handle, const Route& route, Callable* callable) {
  if (const auto* function = find<Function>(handle)) {
    if (function->session != route.session) return CUDA_ERROR_INVALID_HANDLE;
    callable->info = function->info.get();
    return callable->info ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
  }
  if (auto* kernel = find<Kernel>(handle)) {
    callable->is_kernel = true;
    return info_on(*kernel, route, &callable->info);
  }
  return CUDA_ERROR_INVALID_HANDLE;
}

}  // namespace rcuda::client
