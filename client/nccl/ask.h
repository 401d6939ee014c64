// Questions to a worker's NCCL (NcclAsk of api/table/commands.toml).
//
// Threads: any. Blocking: ask(), until the worker has answered.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "client/session/session.h"
#include "common/nccl/nccl_calls.h"

namespace rcuda::client::nccl {

using namespace rcuda::nccl;

struct Asked {
  int result = kInternalError;  // an ncclResult_t; errors of the session are converted
  int error = kSuccess;
  uint64_t value = 0;
  std::string text;
};

// Sends the question and waits for the answer. Sets `question` and `tail_bytes` of `body`.
Asked ask(Session& session, Question question, wire::NcclAskBody body = {},
          std::span<const std::byte> tail = {});

}  // namespace rcuda::client::nccl
