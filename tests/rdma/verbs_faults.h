// Faults for the rig, in a library that is loaded before libibverbs, librdmacm and the C library:
// the host runs out of memory at a chosen call, and queue pairs go into their error state.
//
// A test that links it calls the functions below. A program preloads it (LD_PRELOAD) with
//   RCUDA_TEST_REFUSE_MEMORY=N   refuse_memory(N) at its start
//   RCUDA_TEST_FAULT=FILE        once FILE is written, makes the fault that it names: "queue pairs"
//                                or "memory"; its folder is watched and should have no other files
#pragma once

#include <vector>

#include <infiniband/verbs.h>

namespace rcuda::test {

// From now on, counts the calls that need memory of the host or resources of the adapter: mmap() of
// 64 KiB or more, registrations, protection domains, completion queues and channels, queue pairs.
// Call number `first` and all later calls fail with ENOMEM; 0: no call fails.
void refuse_memory(long first);
long memory_calls();
// The same for the start of threads, which fails with EAGAIN.
void refuse_threads(long first);

// The queue pairs that this process has made and not destroyed, in the order of their creation.
std::vector<ibv_qp*> queue_pairs();
void break_queue_pair(ibv_qp* qp);

// The memory that this process has registered for access by its peers and not deregistered.
std::vector<ibv_mr*> remote_memory();

// The next ibv_get_async_event() of the device returns this event, whatever the kernel reports. The
// caller must make the device's descriptor readable.
void report_event(ibv_context* context, const ibv_async_event& event);

}  // namespace rcuda::test
