#include "client/nccl/ask.h"

#include <cstring>

#include "client/nccl/library.h"
#include "common/wire/channel.h"

namespace rcuda::client::nccl {

Asked ask(Session& session, Question question, wire::NcclAskBody body,
          std::span<const std::byte> tail) {
  body.question = static_cast<uint32_t>(question);
  body.tail_bytes = static_cast<uint32_t>(tail.size());
  const size_t most = question < Question::kFirstOfThreads ? sizeof(uint64_t) * 2 + kMostNameBytes
                                                           : wire::Channel::kMostReplyBytes;
  Asked asked;
  Reply reply;
  const CUresult called = session.call(session.in_context(0), {body, tail}, most, &reply);
  const std::span<const std::byte> got = reply.body();
  if (called != CUDA_SUCCESS || got.size() < sizeof(uint64_t) * 2) {
    asked.result = called == CUDA_SUCCESS ? kInternalError : result_of(called);
    return asked;
  }
  int32_t results[2];
  std::memcpy(results, got.data(), sizeof results);
  std::memcpy(&asked.value, got.data() + sizeof results, sizeof asked.value);
  asked.result = results[0];
  asked.error = results[1];
  asked.text.assign(reinterpret_cast<const char*>(got.data()) + 16, got.size() - 16);
  return asked;
}

}  // namespace rcuda::client::nccl
