// Groups: the calls between ncclGroupStart and ncclGroupEnd are recorded in their thread and sent
// at the outermost end. A call outside of a group is a group of one.
//
// The calls of each worker are one batch. All workers get theirs before the client waits for the
// first answer because their ranks wait for each other. Operations whose connections exist are
// posted; all other calls wait for the worker's answer, as they would wait in NCCL.
// Threads: any; a group belongs to its thread. Blocking: submit() outside of a group and
// end_group(), as long as the operations of NCCL do for a blocking communicator.
#pragma once

#include "client/nccl/step.h"

namespace rcuda::client::nccl {

void start_group();
int end_group();
// Sends the step, or records it. Returns an ncclResult_t: in a group, errors of the call itself are
// reported by its end.
int submit(Step step);
// Sends the step also in a group: for calls that NCCL makes at once.
int submit_at_once(Step step);
// In a group, its end also fails. Returns `error`.
int refuse(int error);

}  // namespace rcuda::client::nccl
