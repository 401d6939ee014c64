// Checkpoints of this process, which another process requests (cuCheckpointProcess*).
//
//   RUNNING --lock--> LOCKED --checkpoint--> CHECKPOINTED --restore--> LOCKED --unlock--> RUNNING
//
// lock() closes the gate of the driver's calls and waits for submitted work. checkpoint() copies
// the device memory into anonymous host memory and unmaps its pages: its addresses stay reserved,
// and an access faults. restore() maps the pages again, with their contents.
//
// As in NVIDIA's driver, checkpoint() returns CUDA_ERROR_NOT_SUPPORTED for a process with managed
// memory and for a client of MPS; the process stays LOCKED. Before CUDA 13.3 (driver 610), a
// process with imported memory gets this error, too. From 13.3 on, it gets the error only if the
// caller has locked no other process: softgpu assumes that the locked processes share the memory.
// Memory that is exported by a descriptor stays where it is.
//
// Threads: only one thread at a time may call these functions. Blocking: lock(), for at most its
// timeout.
#pragma once

#include <chrono>
#include <map>

#include <cuda.h>

namespace softgpu::driver::checkpoint {

CUprocessState state();
// Returns CUDA_ERROR_NOT_READY at the timeout, with the process RUNNING. `timeout` 0: no limit.
CUresult lock(std::chrono::milliseconds timeout);
// `in_group`: the caller has locked more processes than this one.
CUresult checkpoint(bool in_group = false);
// `gpus` maps the number of the GPU that had the memory to the number of the GPU that gets it
// (numbers of the machine's GPUs). It must name the GPU of each device of this process, and must
// not name a target twice. Empty: each GPU gets its own memory back.
using GpuMap = std::map<int, int>;
CUresult restore(const GpuMap& gpus = {});
CUresult unlock();

// Lets processes of this user, and of root, call the functions above. If this process may not start
// a thread, it cannot be checkpointed.
void serve();

}  // namespace softgpu::driver::checkpoint
