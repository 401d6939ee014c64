// Windows: the memory that a program has registered with its communicators.
#pragma once

#include "client/session/route.h"

namespace rcuda::client::nccl {

// Returns the session of the worker that has this window; null if no worker has it. If several
// workers have windows with this handle, prefers the worker of the current context. Any thread;
// nothing blocks.
Session* session_of_window(void* window);

}  // namespace rcuda::client::nccl
