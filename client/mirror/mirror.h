// Mirrored memory: memory that host and kernels use, and whose pages client and worker cannot
// share. Both have a copy, and the client keeps the copies equal. Managed variables are mirrored on
// every medium. Managed memory in the worker (entry/managed.cpp), and page-locked memory that
// kernels may use, are mirrored if the worker cannot map the client's pages, as over TCP and verbs.
//
// Push: before the client posts work that may read or write mirrored memory, it sends the blocks
// that the application changed. It finds them by comparing the memory with the bytes of the last
// exchange; in managed memory, it compares only written pages (write_tracker.h). The blocks go in a
// stream of their own, and each stream of the application waits for all blocks sent so far before
// its next work. So a stalled stream does not delay the bytes for the other streams. In page-locked
// memory, the worker writes only the bytes that changed, and at once (mirror_patch.h). Before a
// wait the client also sends changes of page-locked memory, because a running kernel may be waiting
// for them.
//
// Fetch: at the end of a synchronising call, the client fetches the bytes that the GPU changed. Of
// a mirror above 64 KB it fetches only the blocks that changed (MirrorChanges). Of smaller mirrors
// of page-locked memory that together have more than some 500 bytes, it fetches only the bytes that
// changed (mirror_news.h). Of all other small mirrors it fetches all bytes, in one round trip.
// Fetches of small mirrors are requested together with the wait (fetches_with_wait.h).
//
// A CUDA copy from or to mirrored memory uses the worker's bytes, which are current between a push
// and a fetch (server/executor/host_memory/transfers.h). Before each host function, the worker
// sends all mirrored memory; after the function, it takes over the bytes that the function changed
// (server/executor/mirrors/mirrors.h). If both sides change the same byte between two exchanges, a
// fetch keeps the GPU's value, and a push overwrites it; CUDA forbids such concurrent access
// anyway.
//
// Cost: none while nothing is mirrored. Every launch asks the operating system for the pages
// written since the last launch, or compares all memory that it may use (MirrorUse). Every wait
// asks the worker for the changed blocks. Every host function moves all mirrored memory, which is
// slow for large regions.
// Threads: any. A thread that waits for the worker holds no lock that a host function needs.
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
// Mirrors a managed variable at the worker's address, after opening its pages in the session's
// address windows. An address outside of these windows ends the session (kSessionLost).
CUresult mirror_at(Session& session, wire::ObjectId context, CUdeviceptr address, size_t bytes);
// Like mirror_at(), for whole pages of managed memory that the worker has just allocated. Returns
// CUDA_ERROR_NOT_SUPPORTED in three cases: the address is not a multiple of this process's
// page size (which may be larger than the worker's); the worker cannot find changes; or the worker
// would have to read more than `device_bytes` to find them.
CUresult mirror_managed(Session& session, wire::ObjectId context, CUdeviceptr address, size_t bytes,
                        size_t device_bytes);
// If the memory is mirrored, records that from now on any launch may use it (MirrorUse::kAny).
void any_launch_may_use(const void* address);
// Does the same for all memory whose address is a whole parameter, not part of a larger parameter.
void any_launch_may_use(const LaunchParameters& parameters);
// Ends the mirrors at this address. The memory of a managed allocation is also unmapped.
void unmirror(const void* address);
// Ends the mirrors of the context's managed memory. Call it before the context ends. (Variables end
// with their modules. Variables of libraries outlive contexts.)
void unmirror_context(const Session& session, wire::ObjectId context);
// Whether any memory is mirrored. If so, host memory may be older than the worker's bytes.
bool any_mirrored();
// Returns a route for each mirror of any part of [address, address + bytes): its session, and the
// context in which its bytes are exchanged.
std::vector<Route> mirrored_in(uint64_t address, size_t bytes);
// Whether any part of [address, address + bytes) is mirrored with this worker.
bool is_mirrored(const Session& session, uint64_t address, size_t bytes);

// Sends the blocks that the application changed, and makes the route's stream wait for these and
// earlier blocks. The stream must not be capturing. After an error, the next push sends the rest.
// Errors of earlier commands are not reported here. `launch`: the parameters of the launch that
// follows; null for other work.
CUresult push_mirrors(const Route& route, const LaunchParameters* launch = nullptr);
// Fetches the GPU's changes after a wait, also those of the sessions whose work comes before the
// work of this session (session_order.h). `asked`: the result of ask_with_wait() for this wait; may
// be null.
CUresult pull_mirrors(Session& session, MirrorQuestions* asked = nullptr);
// Sends the application's changes of page-locked memory to kernels that are running and may wait
// for them. `often`: the caller may call again soon, so large memory is not compared each time.
void show_writes(Session& session, bool often);
// Requests the bytes of the session's mirrors as they are when the worker signals `word`. Returns
// null if no mirror needs a request.
std::unique_ptr<MirrorQuestions> ask_with_wait(Session& session, Word word);

// mirrors_arrived() is called before a host function, when the session's worker has sent its bytes.
// mirrors_leave() is called after the function; then the worker takes over the client's bytes.
// `loan`: the number of this exchange. Mirrors whose region has no bytes with this number
// (wire::MirrorLoan) are skipped.
void mirrors_arrived(Session& session, uint64_t loan);
void mirrors_leave(Session& session, uint64_t loan);

}  // namespace rcuda::client
