#include "client/hostmem/host_memory.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include <sys/mman.h>

#include "client/hostmem/host_addresses.h"
#include "client/hostmem/host_region.h"
#include "client/hostmem/registered_pages.h"
#include "client/hostmem/small_host_memory.h"
#include "client/mirror/shared_memory.h"
#include "client/process/own_addresses.h"
#include "client/process/process.h"
#include "client/route/capture.h"
#include "client/route/find_route.h"
#include "common/base/cancellation_off.h"
#include "common/base/log.h"
#include "common/base/mappings.h"
#include "common/base/memory_file.h"
#include "common/base/mutex.h"
#include "common/base/pages.h"
#include "common/base/unique_fd.h"
#include "common/base/units.h"
#include "common/cuda/return_if_error.h"

namespace rcuda::client {
namespace {

HostAddresses& host_range() {
  static auto* const range = new HostAddresses(host_addresses());
  return *range;
}

UniqueFd make_backing(size_t bytes) {
  // Do not make an empty file that a worker enlarges later (shared_memory.h): move_run() fills the
  // file before a worker receives it.
  return may_make_files_of(bytes) ? make_memory_file("rcuda-host", bytes) : UniqueFd();
}

CUresult unexpose_from(Session& session, wire::ObjectId context, uint64_t address,
                       transport::RegionId region) {
  session.shadows().remove(session.link(), address);
  const wire::HostUnexposeBody body{address, static_cast<uint64_t>(region)};
  const CUresult result = session.call(session.in_context(context), body);
  (void)session.link().unexpose(region);
  return result;
}

CUresult expose_to(Session& session, wire::ObjectId context, void* address, size_t bytes,
                   int backing, unsigned flags, transport::RegionId* region,
                   uint64_t callback = 0) {
  Result<transport::Region> exposed = session.link().expose(address, bytes, backing, 0);
  if (!exposed) {
    if (session.lost()) return kSessionLost;
    RCUDA_WARN("%s of page-locked memory at %p could not be shared with %s: %s",
               exact_bytes_text(bytes).c_str(), address, session.name().c_str(),
               exposed.status().message().c_str());
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  wire::HostExposeBody body{};
  body.address = reinterpret_cast<uintptr_t>(address);
  body.bytes = bytes;
  body.region = static_cast<uint64_t>(exposed->id);
  body.flags = flags;
  body.has_backing = backing >= 0;
  body.callback = callback;
  Reply reply;
  const CUresult result =
      session.call(session.in_context(context), body, sizeof(wire::HostExposeReply), &reply);
  if (result != CUDA_SUCCESS) {
    (void)session.link().unexpose(exposed->id);
    return result;
  }
  const auto shadow = wire::Decoder(reply.body()).value<uint64_t>();
  session.shadows().add(session.link(), body.address, bytes,
                        static_cast<transport::RegionId>(shadow));
  *region = exposed->id;
  return CUDA_SUCCESS;
}

wire::ObjectId any_context(const Session& session, const Route& route) {
  return route.session == &session ? route.context : wire::primary_context_id(0);
}

void unexpose_all(const Exposures& exposures, uint64_t address, const Route& route) {
  for (const auto& [session, region] : exposures) {
    (void)unexpose_from(*session, any_context(*session, route), address, region);
  }
}

// Exposes the memory to every session, or to none if one exposure fails. Skips lost sessions of
// other servers: the route's GPUs do not need them.
CUresult expose_to_all(const Route& route, void* address, size_t bytes, int backing, unsigned flags,
                       Exposures* exposures) {
  for (const auto& session : Process::get().sessions()) {
    transport::RegionId region;
    const CUresult result =
        expose_to(*session, any_context(*session, route), address, bytes, backing, flags, &region);
    if (result == kSessionLost && session.get() != route.session) continue;
    if (result != CUDA_SUCCESS) {
      unexpose_all(*exposures, reinterpret_cast<uintptr_t>(address), route);
      exposures->clear();
      return result;
    }
    exposures->emplace_back(session.get(), region);
  }
  return CUDA_SUCCESS;
}

CUresult record(const Route& route, void* address, size_t bytes, Placement placement,
                unsigned flags, const Exposures& exposures, bool reachable) {
  Allocation allocation;
  allocation.base = reinterpret_cast<uintptr_t>(address);
  allocation.bytes = bytes;
  allocation.placement = placement;
  allocation.session = nullptr;
  allocation.device = route.device;
  allocation.context = route.context;
  allocation.flags = flags;
  allocation.exposed = std::make_shared<const Exposures>(exposures);
  allocation.reachable = reachable;
  return Process::get().memory().add(std::move(allocation))
             ? CUDA_SUCCESS
             : CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
}

// Whether the session's worker can map pages of this process that have a backing (a memory file).
bool shares_pages(const std::unique_ptr<Session>& session) {
  return session->traits().shares_pages;
}

// Mirrors memory that kernels may read and write, with every worker that does not map the same
// pages.
void mirror_where_needed(void* address, size_t bytes, MirrorUse use = MirrorUse::kAny) {
  const auto pieces = pieces_in_runs(reinterpret_cast<uintptr_t>(address), bytes);
  // A kernel that gets an address in one piece may use all pieces.
  if (pieces.size() > 1) use = MirrorUse::kAny;
  for (const auto& session : Process::get().sessions()) {
    if (session->lost()) continue;
    for (const auto& [piece, length] : pieces) {
      if (shares_pages(session) && have_backing(piece, length)) continue;
      // Uses the primary context, because the memory may outlive the current context.
      mirror(*session, wire::primary_context_id(0), reinterpret_cast<void*>(piece), length, use);
    }
  }
}

// Returns the whole pages that contain the range.
std::pair<uint64_t, size_t> pages_of(uint64_t begin, size_t bytes) {
  const uint64_t first = page_of(begin);
  return {first, whole_pages(begin + bytes - first)};
}

void end_pages(uint64_t first, size_t bytes, const Route& route) {
  leave_pages(first, bytes,
              [&](const PageRun& run) { unexpose_all(run.exposed, run.first, route); });
}

// Page-locked memory that must be mirrored as soon as a kernel may use it, and that no kernel has
// used so far.
class Unmirrored {
 public:
  void add(const void* address, size_t bytes) {
    const auto& sessions = Process::get().sessions();
    if (std::all_of(sessions.begin(), sessions.end(), shares_pages) &&
        have_backing(reinterpret_cast<uintptr_t>(address), bytes)) {
      return;
    }
    MutexLock lock(mutex_);
    ranges_[reinterpret_cast<uintptr_t>(address)] = bytes;
    count_.store(ranges_.size(), std::memory_order_relaxed);
  }
  void remove(const void* address) {
    MutexLock lock(mutex_);
    ranges_.erase(reinterpret_cast<uintptr_t>(address));
    count_.store(ranges_.size(), std::memory_order_relaxed);
  }
  // Returns the range that contains the address; 0 bytes if no range does.
  std::pair<uint64_t, size_t> find(const void* address) {
    if (empty()) return {};
    MutexLock lock(mutex_);
    return find_locked(reinterpret_cast<uintptr_t>(address));
  }
  bool has(const void* address) { return find(address).second != 0; }
  // Of the 64-bit words of the parameters, returns the offsets of those that are addresses in the
  // ranges.
  std::vector<size_t> words_of(const LaunchParameters& parameters) {
    std::vector<size_t> found;
    if (empty()) return found;
    MutexLock lock(mutex_);
    // each_word() calls this while the lock is held, which the analysis cannot see.
    parameters.each_word([&](size_t at) RCUDA_NO_THREAD_SAFETY_ANALYSIS {
      if (find_locked(parameters.word(at)).second != 0) found.push_back(at);
    });
    return found;
  }

 private:
  bool empty() const { return count_.load(std::memory_order_relaxed) == 0; }
  std::pair<uint64_t, size_t> find_locked(uint64_t address) const RCUDA_REQUIRES(mutex_) {
    if (ranges_.empty() || address < ranges_.begin()->first) return {};
    const auto [base, bytes] = *std::prev(ranges_.upper_bound(address));
    if (address - base >= bytes) return {};
    return {base, bytes};
  }

  Mutex mutex_;
  std::map<uint64_t, size_t> ranges_ RCUDA_GUARDED_BY(mutex_);
  std::atomic<size_t> count_{0};  // read by every launch before it takes the lock
};

Unmirrored& unmirrored() {
  static auto* instance = new Unmirrored;
  return *instance;
}

// Held while memory becomes mirrored, so that meanwhile other threads neither send work that uses
// the memory nor free it.
Mutex mirroring_mutex;

// After this call, no launch or other work begins to mirror the memory.
void stop_mirroring(const void* address) {
  MutexLock lock(mirroring_mutex);
  unmirrored().remove(address);
}

// Maps new whole pages in the host range (map_shared()). Returns null if that fails. The caller
// closes `backing` once the memory is exposed, because the application has a limited number of
// descriptors (ulimit -n).
void* map_in_range(size_t length, UniqueFd* backing) {
  const uint64_t base = host_range().take(length);
  if (base == 0) return nullptr;
  const auto& sessions = Process::get().sessions();
  const bool workers_map = std::any_of(sessions.begin(), sessions.end(), shares_pages);
  void* const memory =
      map_shared("rcuda-host", reinterpret_cast<void*>(base), length, workers_map, backing);
  if (!memory) host_range().give_back(base, length);
  return memory;
}

void unmap_from_range(void* memory, size_t length) {
  munmap(memory, length);
  host_range().give_back(reinterpret_cast<uintptr_t>(memory), length);
}

// Returns the result of a call that has freed memory. Like every call, it fails if the current
// context's session is lost. Lost sessions of other workers do not matter.
CUresult check_current_session() {
  const auto current = find_current_route();
  return current && current->session->lost() ? kSessionLost : CUDA_SUCCESS;
}

}  // namespace

CUresult allocate_internal(Session& session, wire::ObjectId context, size_t bytes,
                           uint64_t callback, InternalHostMemory* memory) {
  const size_t length = whole_pages(bytes);
  UniqueFd backing;
  void* address = map_in_range(length, &backing);
  if (!address) return CUDA_ERROR_OUT_OF_MEMORY;
  constexpr unsigned kFlags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
  transport::RegionId region;
  CUresult result =
      expose_to(session, context, address, length, backing.get(), kFlags, &region, callback);
  if (result == CUDA_SUCCESS && !is_usable(backing, length)) {
    (void)unexpose_from(session, context, reinterpret_cast<uintptr_t>(address), region);
    result = CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (result != CUDA_SUCCESS) {
    unmap_from_range(address, length);
    return result;
  }
  *memory = {&session, address, length, region};
  return CUDA_SUCCESS;
}

void free_internal(const InternalHostMemory& memory) {
  // Context 0 is any context of the worker. The context that made the memory may be destroyed.
  (void)unexpose_from(*memory.session, 0, reinterpret_cast<uintptr_t>(memory.address),
                      memory.region);
  unmap_from_range(memory.address, memory.bytes);
}

CUresult make_region(const Route& route, size_t bytes, HostRegion* region) {
  const size_t length = whole_pages(bytes);
  UniqueFd backing;
  void* memory = map_in_range(length, &backing);
  if (!memory) return CUDA_ERROR_OUT_OF_MEMORY;
  *region = {memory, length, {}};
  constexpr unsigned kEverywhere = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
  CUresult result =
      expose_to_all(route, memory, length, backing.get(), kEverywhere, &region->exposed);
  if (result == CUDA_SUCCESS && !is_usable(backing, length)) {
    unexpose_all(region->exposed, reinterpret_cast<uintptr_t>(memory), route);
    result = CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (result != CUDA_SUCCESS) unmap_from_range(memory, length);
  return result;
}

void end_region(const HostRegion& region, const Route& route) {
  unexpose_all(region.exposed, reinterpret_cast<uintptr_t>(region.address), route);
  unmap_from_range(region.address, region.bytes);
}

void mirror_region(const HostRegion& region) { mirror_where_needed(region.address, region.bytes); }

bool any_mirrors_regions() {
  const auto& sessions = Process::get().sessions();
  return !std::all_of(sessions.begin(), sessions.end(), shares_pages);
}

CUresult allocate_host(void** address, size_t bytes, unsigned flags, bool managed) {
  RCUDA_ASSIGN_OR_RETURN(const Route route, find_current_route());
  RCUDA_RETURN_IF_CUDA_ERROR(check_unsafe_call());
  if (!address || (managed && bytes == 0)) return CUDA_ERROR_INVALID_VALUE;
  if (bytes == 0) {
    *address = nullptr;  // driver 580 succeeds, too
    return CUDA_SUCCESS;
  }
  const bool mapped = managed || (flags & CU_MEMHOSTALLOC_DEVICEMAP);
  const Placement placement = managed ? Placement::kManaged : Placement::kHost;
  void* small = nullptr;
  if (mapped) {
    RCUDA_RETURN_IF_CUDA_ERROR(take_small(route, bytes, &small));
  }
  HostRegion own;
  if (!small) {
    RCUDA_RETURN_IF_CUDA_ERROR(make_region(route, bytes, &own));
  }
  void* const memory = small ? small : own.address;
  if (CUresult result = record(route, memory, bytes, placement, flags, own.exposed, true);
      result != CUDA_SUCCESS) {
    if (!mapped || !give_back_small(route, memory, bytes)) end_region(own, route);
    return result;
  }
  if (!small && mapped) {
    mirror_where_needed(memory, bytes);
  } else if (!small) {
    unmirrored().add(memory, bytes);
  }
  *address = memory;
  return CUDA_SUCCESS;
}

void end_host_memory(const Allocation& memory) {
  const Route route = any_route();  // the thread may have no current context
  void* const address = reinterpret_cast<void*>(memory.base);
  stop_mirroring(address);
  if (memory.placement == Placement::kRegistered) {
    for (const auto& [piece, length] : pieces_in_runs(memory.base, memory.bytes)) {
      unmirror(reinterpret_cast<void*>(piece));
    }
    const auto [first, length] = pages_of(memory.base, memory.bytes);
    if (memory.reachable) end_pages(first, length, route);
    return;
  }
  const bool mapped =
      memory.placement == Placement::kManaged || (memory.flags & CU_MEMHOSTALLOC_DEVICEMAP);
  if (mapped && !memory.session && give_back_small(route, address, memory.bytes)) return;
  unmirror(address);
  if (memory.session) return;  // managed memory of a worker
  end_region({address, whole_pages(memory.bytes), *memory.exposed}, route);
}

namespace {

// Waits, where necessary, before mirrors of the memory end. Each host function exchanges the bytes
// of mirrored memory, so if a session has had host functions, waits for the queued ones. Otherwise
// no wait is needed here, because ending a mirror waits for the device. `stays`: the application
// keeps the memory. Then always waits, also for the context that registered the memory, because the
// wait fetches the results of the GPU's work.
void await_mirrored(const Allocation& memory, bool stays) {
  const std::vector<Route> mirrored = mirrored_in(memory.base, memory.bytes);
  const Device* const device = Process::get().device(static_cast<CUdevice>(memory.device));
  if (stays && device && !mirrored.empty()) (void)await_idle(*device->session, memory.context);
  for (const Route& route : mirrored) {
    if (!stays && !route.session->events().has_had_callbacks()) continue;
    (void)await_idle(*route.session, route.context);
  }
}

}  // namespace

CUresult free_host(void* address) {
  RCUDA_RETURN_IF_CUDA_ERROR(check_not_destroyed());
  RCUDA_RETURN_IF_CUDA_ERROR(check_unsafe_call());
  Registry& registry = Process::get().memory();
  const auto found = registry.find(reinterpret_cast<uintptr_t>(address));
  if (!found || found->base != reinterpret_cast<uintptr_t>(address) ||
      (found->placement != Placement::kHost && found->placement != Placement::kManaged)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (!registry.remove(found->base)) return CUDA_ERROR_INVALID_VALUE;  // already freed
  stop_mirroring(address);
  await_mirrored(*found, false);
  end_host_memory(*found);
  return check_current_session();
}

namespace {

// Refuses memory that a driver could not pin. The log names the reason only for files on disks.
CUresult check_pinning(const std::vector<MappedPart>& parts, uint64_t first, size_t length,
                       unsigned flags) {
  switch (pinning_of(parts, first, first + length, (flags & CU_MEMHOSTREGISTER_READ_ONLY) == 0)) {
    case Pinning::kPossible:
      return CUDA_SUCCESS;
    case Pinning::kWrittenBack:
      RCUDA_WARN(
          "%s of memory at %p cannot be registered: Linux does not pin writable shared pages of a "
          "file on a disk; map the file private or read-only (cudaHostRegisterReadOnly), or move "
          "the file to /dev/shm",
          exact_bytes_text(length).c_str(), reinterpret_cast<void*>(first));
      return CUDA_ERROR_INVALID_VALUE;
    case Pinning::kUnmapped:
    case Pinning::kInaccessible:
      break;
  }
  return CUDA_ERROR_INVALID_VALUE;
}

// Makes a new run (registered_pages.h) usable by every worker. For workers that can map pages of
// this process, the run's pages move onto a memfd. Pages that a file, another process or another
// driver also uses do not move. If the pages have not moved, every worker has its own pages, and
// the memory is mirrored. `all`: the mappings of the run, and perhaps others.
CUresult make_run(const Route& route, unsigned flags, const std::vector<MappedPart>& all,
                  PageRun* run) {
  void* const pages = reinterpret_cast<void*>(run->first);
  const auto& sessions = Process::get().sessions();
  UniqueFd backing;
  if (std::any_of(sessions.begin(), sessions.end(), shares_pages)) {
    const std::vector<MappedPart> parts = parts_in(all, run->first, run->first + run->bytes);
    const bool all_private = std::none_of(parts.begin(), parts.end(),
                                          [](const MappedPart& part) { return part.is_shared; });
    if (all_private && !any_page_pinned()) backing = make_backing(run->bytes);
    if (backing && !move_run(run, backing.get(), parts)) {
      RCUDA_DEBUG(
          "the registered pages at %p cannot become shared memory, so they are mirrored: %s", pages,
          std::strerror(errno));
      backing.reset();
    }
  }
  return expose_to_all(route, pages, run->bytes, backing.get(), flags, &run->exposed);
}

}  // namespace

CUresult register_host(void* address, size_t bytes, unsigned flags) {
  RCUDA_ASSIGN_OR_RETURN(const Route route, find_current_route());
  RCUDA_RETURN_IF_CUDA_ERROR(check_unsafe_call());
  constexpr unsigned kKnown = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP |
                              CU_MEMHOSTREGISTER_IOMEMORY | CU_MEMHOSTREGISTER_READ_ONLY;
  if (!address || bytes == 0 || (flags & ~kKnown)) return CUDA_ERROR_INVALID_VALUE;
  if (flags & CU_MEMHOSTREGISTER_IOMEMORY) return CUDA_ERROR_NOT_SUPPORTED;
  Registry& registry = Process::get().memory();
  const auto begin = reinterpret_cast<uintptr_t>(address);
  if (begin + bytes < begin) return CUDA_ERROR_INVALID_VALUE;
  if (const auto known = registry.find(begin); known && known->placement == Placement::kHost) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (registry.overlaps(begin, bytes)) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  const auto [first, length] = pages_of(begin, bytes);
  const std::vector<MappedPart> parts = mappings_in(first, first + length);
  RCUDA_RETURN_IF_CUDA_ERROR(check_pinning(parts, first, length, flags));
  const unsigned everywhere = flags | CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
  CUresult refused = CUDA_SUCCESS;
  const auto make = [&](PageRun* run) {
    refused = make_run(route, everywhere, parts, run);
    return refused == CUDA_SUCCESS;
  };
  const bool ready = use_pages(first, length, make, [&](const PageRun& run) {
    unexpose_all(run.exposed, run.first, route);
  });
  if (!ready && !route.session->lost()) {
    RCUDA_WARN("kernels cannot use the registered memory at %p (%s), only copies can: %s", address,
               exact_bytes_text(bytes).c_str(),
               refused == CUDA_ERROR_OUT_OF_MEMORY
                   ? "a server has no memory for it"
                   : "a server uses these addresses, or the program has remapped pages that an "
                     "earlier call registered");
  }
  const CUresult result = route.session->lost() ? kSessionLost
                                                : record(route, address, bytes,
                                                         Placement::kRegistered, flags, {}, ready);
  if (result != CUDA_SUCCESS) {
    if (ready) end_pages(first, length, route);
    return result;
  }
  if (ready && (flags & CU_MEMHOSTREGISTER_DEVICEMAP)) {
    mirror_where_needed(address, bytes);
  } else if (ready) {
    unmirrored().add(address, bytes);
  }
  return CUDA_SUCCESS;
}

namespace {

void mirror_now(const Route& route, const void* address, MirrorUse use) {
  const CancellationOff off;
  MutexLock lock(mirroring_mutex);
  const auto [base, bytes] = unmirrored().find(address);
  if (bytes == 0) return;
  // Wait for copies in progress that may still write to this process's memory. Otherwise mirroring
  // would send older bytes of this process over the results of these copies in the worker.
  if (Timeline::host_writes_pending()) (void)await_idle(*route.session, route.context);
  RCUDA_INFO(
      "%s of page-locked memory at %p are mirrored on the server from now on, because work on the "
      "GPU may use them",
      exact_bytes_text(bytes).c_str(), reinterpret_cast<void*>(base));
  mirror_where_needed(reinterpret_cast<void*>(base), bytes, use);
  unmirrored().remove(reinterpret_cast<void*>(base));
}

}  // namespace

void mirror_reachable(const Route& route, const void* address) {
  if (unmirrored().has(address)) mirror_now(route, address, MirrorUse::kAny);
  any_launch_may_use(address);
}

CUresult mirror_for(const Route& route, CUstream stream, uint64_t address) {
  mirror_reachable(route, reinterpret_cast<const void*>(address));
  if (!is_mirrored(*route.session, address, 1) || may_capture(stream)) return CUDA_SUCCESS;
  return push_mirrors(route);
}

void mirror_reachable(const Route& route, const LaunchParameters& parameters) {
  for (const size_t at : unmirrored().words_of(parameters)) {
    mirror_now(route, reinterpret_cast<const void*>(parameters.word(at)),
               parameters.is_whole(at) ? MirrorUse::kAny : MirrorUse::kNamed);
  }
  any_launch_may_use(parameters);
}

CUresult unregister_host(void* address) {
  RCUDA_RETURN_IF_CUDA_ERROR(check_not_destroyed());
  RCUDA_RETURN_IF_CUDA_ERROR(check_unsafe_call());
  const auto begin = reinterpret_cast<uintptr_t>(address);
  Registry& registry = Process::get().memory();
  const auto found = registry.find(begin);
  if (!address) return CUDA_ERROR_INVALID_VALUE;
  if (!found) return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  if (found->base != begin || found->placement != Placement::kRegistered) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (!registry.remove(found->base)) return CUDA_ERROR_INVALID_VALUE;  // already unregistered
  stop_mirroring(address);
  await_mirrored(*found, true);
  end_host_memory(*found);
  return check_current_session();
}

}  // namespace rcuda::client
