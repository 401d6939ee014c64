// Groups: the calls between ncclGroupStart and ncclGroupEnd are recorded in their thread and sent
// at the outermost ncclGroupEnd. A call outside of a group is a group of one.
//
// The calls for one worker form a batch. The client sends all batches before it waits for the first
// answer, because the ranks of the workers wait for each other. Operations whose connections exist
// are posted; all other calls wait for the worker's answer, as they would wait in NCCL.
//
// If one worker's batch fails, the ranks of the other workers may wait for its ranks forever. In a
// single process, NCCL itself aborts the communicators of a failed group. Here the client does so:
// it waits two more seconds for the errors of the other workers, then aborts the communicators of
// the batches that have no answer yet. Later calls on these communicators return ncclRemoteError,
// except calls that destroy or abort them.
//
// Threads: any; a group belongs to its thread. Blocking: with blocking communicators, submit()
// outside of a group, submit_at_once() and end_group() block as long as NCCL's calls would.
#pragma once

#include "client/nccl/step.h"

namespace rcuda::client::nccl {

void start_group();
int end_group();
// Ends the group without executing its operations. Stores NCCL's estimate of their time. Returns
// ncclInvalidUsage if the group has other calls than operations.
int simulate_group(float* microseconds);
// Sends the step and returns an ncclResult_t. In a group, only records the step; the end of the
// group then returns the call's error.
int submit(Step step);
// Sends the step at once, even in a group: for calls that NCCL does not record in groups.
int submit_at_once(Step step);
// Returns `error`. In a group, also makes the end of the group fail.
int refuse(int error);

}  // namespace rcuda::client::nccl
