// Faults for the rig, in a library that stands before libibverbs, librdmacm and the C library: the
// host runs out of memory at a chosen call, and queue pairs go into their error state.
//
// A test that links it calls the functions below. A program gets it with LD_PRELOAD and
//   RCUDA_TEST_REFUSE_MEMORY=N   refuse_memory(N) at its start
//   RCUDA_TEST_FAULT=FILE        once FILE exists, do what it says: "queue pairs" or "memory"; its
//                                folder is watched, and should hold nothing else
#pragma once

#include <vector>

#include <infiniband/verbs.h>

namespace rcuda::test {

// Counts from now on the calls that need memory of the host or resources of the adapter: mmap() of
// 64 KiB or more, registrations, protection domains, completion queues and channels, queue pairs.
// Those from the `first` on fail with ENOMEM; 0: none.
void refuse_memory(long first);
long memory_calls();
// The same for starting threads, with EAGAIN.
void refuse_threads(long first);

// Queue pairs that this process made and still has, in the order of their making.
std::vector<ibv_qp*> queue_pairs();
void break_queue_pair(ibv_qp* qp);

// The next ibv_get_async_event() of the event's device gives this event, whatever the kernel says.
// The device's descriptor must be made readable by other means.
void report_event(ibv_context* context, const ibv_async_event& event);

}  // namespace rcuda::test
