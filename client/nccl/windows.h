// Windows: the memory that a program has registered with its communicators.
#pragma once

#include "client/session/route.h"

namespace rcuda::client::nccl {

// The session of the worker that has this window; null if no worker has it. Workers may have equal
// windows; the one of the current context is preferred. Any thread; nothing blocks.
Session* session_of_window(void* window);

}  // namespace rcuda::client::nccl
