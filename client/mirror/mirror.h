// Mirrored memory: memory for host and kernels whose pages client and worker cannot share. Both
// have a copy, and the copies are kept equal. Variables of modules and managed memory in the worker
// (entry/managed.cpp) are mirrored on every medium; page-locked memory that kernels may use, on
// media that do not share pages (TCP, verbs).
//
// Before the client posts work that may read or write mirrored memory, it sends the blocks that the
// application changed. It finds them by write tracking (write_tracker.h) where the memory is its
// own, and by comparing. They go in a stream of their own, and each stream of the application waits
// for all that was sent before its next work: so a stream that is held keeps nothing from the
// others. Of page-locked memory, the worker writes only the bytes that changed, and at once
// (mirror_patch.h). Before a wait it sends changes of page-locked memory as well, because a running
// kernel may be waiting for them. After a synchronising call returns, it fetches the bytes that the
// GPU changed. Of up to 64 KB it fetches all bytes in one round trip. Of more, and of many small
// mirrors together, it fetches only the bytes or blocks that changed (mirror_news.h,
// MirrorChanges). Fetches of small mirrors are requested together with the wait
// (fetches_with_wait.h). Copies in between use the worker's bytes
// (server/executor/host_memory/transfers.h). Around each host function, the worker sends all
// mirrored memory and takes back the bytes that the function changed
// (server/executor/mirrors/mirrors.h). If both sides changed a byte in between, a fetch keeps the
// GPU's value, and what is sent overwrites it; CUDA forbids such concurrent access anyway.
//
// Cost: none while nothing is mirrored. Every launch asks for the pages written since the last
// launch, or compares all memory that it may use (MirrorUse). Every wait asks for the blocks
// changed. Every host function moves all mirrored memory, which is slow for large regions. Threads:
// any. A thread that waits for the worker holds no lock that a host function needs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <cuda.h>

#include "client/mirror/mirror_use.h"
#include "client/session/session.h"

namespace rcuda::client {

// Mirrors memory that is already mapped here. The next push sends its contents.
void mirror(Session& session, wire::ObjectId context, void* address, size_t bytes,
            MirrorUse use = MirrorUse::kAny);
// Opens the pages in the session's windows first, then mirrors the range: a managed variable, at
// the worker's address. An address outside of the windows ends the session (kSessionLost).
CUresult mirror_at(Session& session, wire::ObjectId context, CUdeviceptr address, size_t bytes);
// The same for managed memory that the worker has just allocated: whole pages.
// CUDA_ERROR_NOT_SUPPORTED if they are none of this process, whose pages may be larger, if the
// worker cannot find changes, or if it would have to read more than `device_bytes` for that.
CUresult mirror_managed(Session& session, wire::ObjectId context, CUdeviceptr address, size_t bytes,
                        size_t device_bytes);
// Any launch may use the memory from now on, if it is mirrored.
void any_launch_may_use(const void* address);
// The same for memory whose address is a parameter of its own.
void any_launch_may_use(const LaunchParameters& parameters);
// The memory of a managed allocation is unmapped, too.
void unmirror(const void* address);
// To be called before a context ends: ends the mirrors of its managed memory. (Variables end with
// their modules. Those of libraries outlive contexts.)
void unmirror_context(const Session& session, wire::ObjectId context);
// Whether any memory is mirrored, so that host memory may be older than the worker's bytes.
bool any_mirrored();
// Where any part of [address, address + bytes) is mirrored: the sessions, and the contexts in which
// they exchange it.
std::vector<Route> mirrored_in(uint64_t address, size_t bytes);
// Whether any part of [address, address + bytes) is mirrored with this worker.
bool is_mirrored(const Session& session, uint64_t address, size_t bytes);

// Sends the blocks that the application changed, and lets the route's stream, which must not be
// capturing, wait for these and for earlier ones. On error, not all were sent; the next push sends
// the rest. Errors of earlier commands are not reported here. `launch`: of the only work that will
// follow, if that is a launch; otherwise null.
CUresult push_mirrors(const Route& route, const LaunchParameters* launch = nullptr);
// To be called after a wait. `asked`: the result of ask_with_wait() for this wait; may be null.
CUresult pull_mirrors(Session& session, MirrorQuestions* asked = nullptr);
// Sends what the application changed in page-locked memory, for kernels that are running and wait
// for it. `often`: the caller may ask again soon, so large memory is not compared each time.
void show_writes(Session& session, bool often);
// Asks for mirrors of the session as they are when the word is signalled. Null: for none.
std::unique_ptr<MirrorQuestions> ask_with_wait(Session& session, Word word);
// Work of one session waits for work of another. From now on, a wait fetches from all sessions.
void note_order_between_sessions();

// Called before and after a host function. The session's worker has sent its bytes before the first
// call, and takes the client's bytes after the second. Only mirrors whose region has bytes of this
// loan (wire::MirrorLoan) are touched.
void mirrors_arrived(Session& session, uint64_t loan);
void mirrors_leave(Session& session, uint64_t loan);

}  // namespace rcuda::client
