#include "client/mirror/mirror.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <sys/mman.h>

#include "client/mirror/fetches_with_wait.h"
#include "client/mirror/mirror_exchange.h"
#include "client/mirror/mirror_patch.h"
#include "client/mirror/session_order.h"
#include "client/mirror/shared_memory.h"
#include "client/session/calls_in_flight.h"
#include "common/base/cancellation_off.h"
#include "common/base/log.h"
#include "common/base/mutex.h"
#include "common/base/pages.h"
#include "common/base/unique_fd.h"
#include "common/base/units.h"

namespace rcuda::client {
namespace {

using Shared = std::shared_ptr<Mirror>;

// The limit for the block size in a worker's reply. Workers choose smaller blocks
// (server/executor/mirrors/block_digests.h).
constexpr uint64_t kMostBlockBytes = 1u << 30;

std::atomic<size_t> mirror_count{0};
std::atomic<bool> some_named{false};  // there is or was a mirror of MirrorUse::kNamed
// The scratch memory for push(); guarded by push_mutex.
std::vector<std::byte>& push_content() RCUDA_REQUIRES(push_mutex) {
  static auto* instance = new std::vector<std::byte>;
  return *instance;
}
Mutex variable_mutex;  // guards mirror_at(): a variable is mapped and mirrored only once
std::vector<Shared>& mirrors() RCUDA_REQUIRES(mirrors_mutex) {
  static auto* instance = new std::vector<Shared>;
  return *instance;
}

// Returns the mirrors for which `choose` returns true. The thread-safety analysis is off, because
// some callers' `choose` also needs push_mutex, which those callers hold.
template <typename Choose>
std::vector<Shared> chosen(const Choose& choose) RCUDA_NO_THREAD_SAFETY_ANALYSIS {
  std::vector<Shared> found;
  MutexLock lock(mirrors_mutex);
  for (const Shared& mirror : mirrors()) {
    if (choose(*mirror)) found.push_back(mirror);
  }
  return found;
}

std::vector<Shared> of_session(const Session& session) {
  return chosen([&](const Mirror& mirror) { return mirror.session == &session; });
}

// Returns the timeline of the stream in which a context's mirrors exchange bytes; all mirrors of a
// context share it.
std::shared_ptr<Timeline> exchanges_in(Session& session, wire::ObjectId context) {
  MutexLock lock(mirrors_mutex);
  for (const Shared& mirror : mirrors()) {
    if (mirror->session == &session && mirror->context == context) return mirror->exchanges;
  }
  return std::make_shared<Timeline>(session, context, wire::kFetchStream);
}

// Exposes the region for the worker's bytes and adds the mirror in the worker. If one of these
// steps fails, the memory is not mirrored. A small variable is fetched in the same round trip;
// *fetched says whether its bytes are in the region.
CUresult introduce(Mirror& mirror, bool* fetched) {
  const size_t half = whole_pages(wire::MirrorLoan::region_bytes(mirror.bytes));
  UniqueFd backing;
  void* const memory = map_shared("rcuda-mirror", nullptr, 2 * half,
                                  mirror.session->traits().shares_pages, &backing);
  if (!memory) return CUDA_ERROR_OUT_OF_MEMORY;
  (void)madvise(memory, 2 * half, MADV_DONTFORK);
  Result<transport::Region> region =
      mirror.session->link().expose(memory, 2 * half, backing.get(), 0);
  if (!region) {
    RCUDA_WARN("%s of memory for the mirror of %p could not be shared with %s: %s",
               exact_bytes_text(2 * half).c_str(), static_cast<void*>(mirror.address),
               mirror.session->name().c_str(), region.status().message().c_str());
    munmap(memory, 2 * half);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  mirror.lent = static_cast<std::byte*>(memory);
  mirror.fetched = mirror.lent + half;
  mirror.region = region->id;
  const wire::MirrorBody body{reinterpret_cast<uintptr_t>(mirror.address), mirror.bytes,
                              static_cast<uint64_t>(region->id), half,
                              mirror.memory == MirroredMemory::kVariable};
  const wire::MirrorFetchBody fetch{reinterpret_cast<uintptr_t>(mirror.address)};
  const Route route = mirror.session->in_context(mirror.context);
  CUresult result = CUDA_SUCCESS;
  wire::MirrorReply told{};
  CallsInFlight calls;
  calls.add(route, body, sizeof told, [&](CUresult answer, const Reply& reply) {
    result = answer;
    if (reply.body().size() == sizeof told) {
      std::memcpy(&told, reply.body().data(), sizeof told);
    }
  });
  if (mirror.memory == MirroredMemory::kVariable && mirror.bytes <= transport::kMaxRegionPut) {
    calls.add(route, fetch, sizeof(wire::MirrorState),
              [&](CUresult answer, const Reply&) { *fetched = answer == CUDA_SUCCESS; });
  }
  calls.finish();
  if (result == CUDA_SUCCESS && !is_usable(backing, 2 * half)) result = CUDA_ERROR_OUT_OF_MEMORY;
  if (told.block_bytes % kMirrorBlockBytes != 0 || told.block_bytes > kMostBlockBytes) {
    result = mirror.session->lose(Status(
        Code::kProtocol, "the worker reported blocks of " + std::to_string(told.block_bytes) +
                             " bytes for changes of mirrored memory; a block must have a "
                             "multiple of 4096 bytes, at most 1 GiB"));
  }
  mirror.changes_bytes = told.block_bytes;
  if (result != CUDA_SUCCESS) {
    (void)mirror.session->link().unexpose(region->id);
    munmap(memory, 2 * half);
  }
  return result;
}

// Removes the mirror in the worker and unmaps the region: the reverse of introduce().
void withdraw(Mirror& mirror) {
  const wire::UnmirrorBody body{{reinterpret_cast<uintptr_t>(mirror.address)}};
  const auto in = [&](wire::ObjectId context) {
    return mirror.session->call(mirror.session->in_context(context), body);
  };
  // If the context has ended, name no context.
  if (in(mirror.context) != CUDA_SUCCESS) (void)in(0);
  (void)mirror.session->link().unexpose(mirror.region);
  MutexLock pulling(pull_mutex);
  MutexLock lock(mirrors_mutex);
  munmap(mirror.lent, 2 * static_cast<size_t>(mirror.fetched - mirror.lent));
  mirror.lent = mirror.fetched = nullptr;
}

// Adds a mirror. The contents of a variable are fetched before the mirror is visible to other
// threads, because these threads would push the client's memory, which is still zero. The
// thread-safety analysis is off, because the members of a mirror that no other thread sees need no
// lock.
CUresult add(Session& session, wire::ObjectId context, std::byte* address, size_t bytes,
             MirroredMemory memory, WriteTracker* tracker = nullptr,
             MirrorUse use = MirrorUse::kAny) RCUDA_NO_THREAD_SAFETY_ANALYSIS {
  auto mirror = std::make_shared<Mirror>();
  mirror->memory = memory;
  mirror->use = use;
  mirror->session = &session;
  mirror->context = context;
  mirror->address = address;
  mirror->bytes = bytes;
  char name[64];
  std::snprintf(name, sizeof name, "mirror of %s at %p", exact_bytes_text(bytes).c_str(),
                static_cast<void*>(address));
  mirror->name = name;
  mirror->tracker = tracker;
  mirror->all_written = !tracker;
  mirror->exchanges = exchanges_in(session, context);
  mirror->exchanged.resize((bytes + kMirrorBlockBytes - 1) / kMirrorBlockBytes);
  mirror->unnoted.resize(mirror->exchanged.size());
  void* const known = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (known == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  // A child process needs neither these bytes nor the region, and would keep their memory after the
  // mirror has ended here.
  (void)madvise(known, bytes, MADV_DONTFORK);
  mirror->known = {static_cast<std::byte*>(known), UnmapPages{bytes}};
  bool fetched = false;
  if (CUresult result = introduce(*mirror, &fetched); result != CUDA_SUCCESS) {
    RCUDA_WARN("%s of memory at %p cannot be mirrored on %s (docs/differences.md): CUDA error %d",
               exact_bytes_text(bytes).c_str(), static_cast<void*>(address), session.name().c_str(),
               static_cast<int>(result));
    return result;
  }
  if (memory == MirroredMemory::kManaged && mirror->changes_bytes == 0) {
    withdraw(*mirror);
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  if (memory == MirroredMemory::kVariable) {
    const CUresult pulled = [&] {
      MutexLock lock(pull_mutex);
      if (!fetched) return pull({mirror}).front();
      MutexLock state(mirrors_mutex);
      merge(*mirror, mirror->fetched, {{0, bytes}}, true);
      return CUDA_SUCCESS;
    }();
    if (pulled != CUDA_SUCCESS) {
      withdraw(*mirror);
      return pulled;
    }
  }
  static constexpr MirrorHooks kHooks{mirrors_arrived, mirrors_leave, ask_with_wait, pull_mirrors,
                                      show_writes};
  session.mirrors().set_hooks(&kHooks);
  MutexLock lock(mirrors_mutex);
  mirrors().push_back(std::move(mirror));
  mirror_count.fetch_add(1, std::memory_order_release);
  return CUDA_SUCCESS;
}

// Repeats a fetch that failed.
CUresult catch_up(const Shared& mirror) {
  if (!mirror->is(MirrorStage::kStale)) [[likely]]
    return CUDA_SUCCESS;
  MutexLock lock(pull_mutex);
  return mirror->is(MirrorStage::kStale) ? pull({mirror}).front() : CUDA_SUCCESS;
}

template <typename Choose>
void end_mirrors(const Choose& choose) {
  std::vector<Shared> removed;
  {
    MutexLock pushing(push_mutex);
    MutexLock lock(mirrors_mutex);
    std::vector<Shared>& all = mirrors();
    const auto first = std::stable_partition(all.begin(), all.end(),
                                             [&](const Shared& known) { return !choose(*known); });
    removed.assign(first, all.end());
    all.erase(first, all.end());
    for (const Shared& mirror : removed) mirror->stage.move(MirrorEvent::kRemoval, mirror->name);
    mirror_count.fetch_sub(removed.size(), std::memory_order_release);
  }
  for (const Shared& mirror : removed) {
    withdraw(*mirror);
    if (mirror->memory == MirroredMemory::kManaged) {
      mirror->session->windows().close(reinterpret_cast<uintptr_t>(mirror->address),
                                       whole_pages(mirror->bytes));
    }
  }
}

bool is_variable_at(const Mirror& mirror, const Session& session, CUdeviceptr address,
                    size_t bytes) {
  return mirror.memory == MirroredMemory::kVariable && mirror.session == &session &&
         reinterpret_cast<uintptr_t>(mirror.address) == address && mirror.bytes == bytes;
}

// Ends the mirrors of variables in this memory, which the worker has reused: the variables no
// longer exist. This happens after a context reset, which unloads modules without a call that names
// them.
void end_variables_in(const Session& session, CUdeviceptr address, size_t bytes) {
  end_mirrors([&](const Mirror& mirror) {
    return mirror.memory == MirroredMemory::kVariable && mirror.session == &session &&
           mirror.overlaps(address, bytes);
  });
}

size_t managed_bytes() {
  size_t bytes = 0;
  MutexLock lock(mirrors_mutex);
  for (const Shared& mirror : mirrors()) {
    if (mirror->memory == MirroredMemory::kManaged) bytes += mirror->bytes;
  }
  return bytes;
}

}  // namespace

void mirror(Session& session, wire::ObjectId context, void* address, size_t bytes, MirrorUse use) {
  if (bytes <= kAlwaysSentBytes) use = MirrorUse::kAny;
  if (use == MirrorUse::kNamed) some_named = true;
  (void)add(session, context, static_cast<std::byte*>(address), bytes, MirroredMemory::kHost,
            nullptr, use);
}

CUresult mirror_at(Session& session, wire::ObjectId context, CUdeviceptr address, size_t bytes) {
  if (!session.accepts(address, bytes, "a managed variable")) return kSessionLost;
  MutexLock once(variable_mutex);
  {
    MutexLock lock(mirrors_mutex);
    for (const Shared& known : mirrors()) {
      if (is_variable_at(*known, session, address, bytes)) return CUDA_SUCCESS;
    }
  }
  end_variables_in(session, address, bytes);
  // Open each page only once: several variables may share a page.
  for (uintptr_t at = page_of(address); at < address + bytes; at += page_bytes()) {
    const bool ours = [&] {
      MutexLock lock(mirrors_mutex);
      return std::any_of(mirrors().begin(), mirrors().end(), [&](const Shared& known) {
        const uint64_t first = page_of(reinterpret_cast<uintptr_t>(known->address));
        return at >= first && at < reinterpret_cast<uintptr_t>(known->address) + known->bytes;
      });
    }();
    if (!ours && !session.windows().open(at, page_bytes())) return CUDA_ERROR_OUT_OF_MEMORY;
  }
  return add(session, context, reinterpret_cast<std::byte*>(address), bytes,
             MirroredMemory::kVariable);
}

CUresult mirror_managed(Session& session, wire::ObjectId context, CUdeviceptr address, size_t bytes,
                        size_t device_bytes) {
  // The worker reads all managed memory to find changes. Reading a page that no kernel has touched
  // populates it in device memory, so the total is limited to the size of device memory.
  if (managed_bytes() + bytes > device_bytes) return CUDA_ERROR_NOT_SUPPORTED;
  void* const wanted = reinterpret_cast<void*>(address);
  const size_t mapped = whole_pages(bytes);
  if (!session.accepts(address, mapped, "managed memory")) return kSessionLost;
  if (address != whole_pages(address)) return CUDA_ERROR_NOT_SUPPORTED;
  end_variables_in(session, address, mapped);
  if (!session.windows().open(address, mapped)) return CUDA_ERROR_OUT_OF_MEMORY;
  // Large pages make the write tracking cheaper: write protection is set and lifted once for each
  // large page.
  (void)madvise(wanted, mapped, MADV_HUGEPAGE);
  // A child process could not fetch the GPU's changes. With a local GPU, a child process has no
  // access either.
  (void)madvise(wanted, mapped, MADV_DONTFORK);
  WriteTracker* tracker = WriteTracker::get();
  if (tracker && !tracker->watch(wanted, mapped)) tracker = nullptr;
  const CUresult result = add(session, context, static_cast<std::byte*>(wanted), bytes,
                              MirroredMemory::kManaged, tracker);
  if (result != CUDA_SUCCESS) session.windows().close(address, mapped);
  return result;
}

void unmirror(const void* address) {
  end_mirrors([&](const Mirror& mirror) { return mirror.address == address; });
}

void unmirror_context(const Session& session, wire::ObjectId context) {
  if (!any_mirrored()) return;
  end_mirrors([&](const Mirror& mirror) {
    return mirror.memory == MirroredMemory::kManaged && mirror.session == &session &&
           mirror.context == context;
  });
}

void any_launch_may_use(const void* address) {
  if (!some_named) [[likely]]
    return;
  MutexLock lock(mirrors_mutex);
  for (const Shared& known : mirrors()) {
    if (known->is_named_by(reinterpret_cast<uintptr_t>(address))) known->use = MirrorUse::kAny;
  }
}

void any_launch_may_use(const LaunchParameters& parameters) {
  if (!some_named) [[likely]]
    return;
  parameters.each_word([&](size_t at) {
    if (!parameters.is_whole(at)) return;
    any_launch_may_use(reinterpret_cast<const void*>(parameters.word(at)));
  });
}

bool any_mirrored() { return mirror_count.load(std::memory_order_acquire) != 0; }

std::vector<Route> mirrored_in(uint64_t address, size_t bytes) {
  std::vector<Route> routes;
  if (!any_mirrored()) [[likely]]
    return routes;
  MutexLock lock(mirrors_mutex);
  for (const Shared& known : mirrors()) {
    if (known->overlaps(address, bytes)) routes.push_back(known->route());
  }
  return routes;
}

bool is_mirrored(const Session& session, uint64_t address, size_t bytes) {
  if (!any_mirrored()) [[likely]]
    return false;
  MutexLock lock(mirrors_mutex);
  return std::any_of(mirrors().begin(), mirrors().end(), [&](const Shared& known) {
    return known->session == &session && known->overlaps(address, bytes);
  });
}

namespace {

uint64_t pushes RCUDA_GUARDED_BY(push_mutex) = 0;  // pushes of whole blocks, of all sessions

// Makes the route's stream wait for all pushes so far, unless it already does.
CUresult await_pushes(const Route& route) RCUDA_REQUIRES(push_mutex) {
  if (pushes == 0 || (route.timeline && route.timeline->awaited_push == pushes)) {
    return CUDA_SUCCESS;
  }
  const wire::MirrorAwaitBody body{stream_id(route)};
  const CUresult result = route.session->post(route, body);
  if (result == CUDA_SUCCESS && route.timeline) route.timeline->awaited_push = pushes;
  return result;
}

// Whether the launch may use the memory. Returns true for memory that was never sent.
bool may_use(const LaunchParameters& launch, const Mirror& mirror) {
  if (mirror.use == MirrorUse::kAny) return true;
  if (mirror.is(MirrorStage::kNew)) return true;
  bool found = false;
  launch.each_word([&](size_t at) { found |= mirror.is_named_by(launch.word(at)); });
  return found;
}

// Notes that later work of the context may use the memory.
void note_named(Mirror& mirror, wire::ObjectId context) RCUDA_REQUIRES(push_mutex) {
  if (mirror.use != MirrorUse::kNamed) return;
  std::vector<wire::ObjectId>& all = mirror.named_in;
  if (std::find(all.begin(), all.end(), context) == all.end()) all.push_back(context);
}

// Whether a kernel that is running may use the memory.
bool may_be_in_use(Mirror& mirror) RCUDA_REQUIRES(push_mutex) {
  if (mirror.use == MirrorUse::kAny) return true;
  std::erase_if(mirror.named_in, [&](wire::ObjectId context) {
    return mirror.session->timelines().is_quiet(Timelines::Scope::kContext, context);
  });
  return !mirror.named_in.empty();
}

// Whether the mirror is small and certainly has no changes of the host. There may be many small
// mirrors, so callers skip unchanged ones with this test, which costs less than a push.
bool is_unchanged(const Mirror& mirror) RCUDA_REQUIRES(mirrors_mutex) {
  return mirror.bytes <= kAlwaysSentBytes && !mirror.tracker && mirror.is(MirrorStage::kCurrent) &&
         std::find(mirror.exchanged.begin(), mirror.exchanged.end(), 0) == mirror.exchanged.end() &&
         std::memcmp(mirror.address, mirror.known.get(), mirror.bytes) == 0;
}

}  // namespace

CUresult push_mirrors(const Route& route, const LaunchParameters* launch) {
  if (!any_mirrored()) [[likely]]
    return CUDA_SUCCESS;
  const CancellationOff off;
  MutexLock lock(push_mutex);
  for (const Shared& mirror : chosen([&](const Mirror& known) RCUDA_REQUIRES(mirrors_mutex) {
         return known.session == route.session && !is_unchanged(known);
       })) {
    if (launch && !may_use(*launch, *mirror)) continue;
    note_named(*mirror, route.context);
    size_t sent_bytes = 0;
    CUresult result = catch_up(mirror);
    if (result == CUDA_SUCCESS) result = push(*mirror, &push_content(), &sent_bytes);
    if (sent_bytes != 0 && !mirror->is_patched()) {  // also if only a part was sent
      ++pushes;
      const CUresult told = mirror->session->post(mirror->route(), wire::MirrorSentBody{});
      if (result == CUDA_SUCCESS) result = told;
    }
    if (result != CUDA_SUCCESS) return result;
  }
  return await_pushes(route);
}

void show_writes(Session& session, bool often) {
  if (!any_mirrored()) [[likely]]
    return;
  using Clock = std::chrono::steady_clock;
  constexpr auto kPause = std::chrono::milliseconds(10);
  static Clock::time_point large_compared_at RCUDA_GUARDED_BY(push_mutex);
  MutexLock lock(push_mutex, std::defer_lock);
  if (!often) {
    lock.lock();
  } else if (!lock.try_lock()) {
    return;
  }
  const Clock::time_point now = Clock::now();
  const bool large_too = !often || now - large_compared_at >= kPause;
  if (large_too) large_compared_at = now;
  const bool all = any_order();
  // Skips memory that was not exchanged yet, or that no running kernel may use: no kernel can be
  // waiting for the host's writes to it.
  const auto is_due = [&](Mirror& known) RCUDA_REQUIRES(mirrors_mutex, push_mutex) {
    if (!(all || known.session == &session) || !known.is_patched()) return false;
    if (!has_exchanged(known.stage.get())) return false;
    if (!may_be_in_use(known)) return false;
    return known.bytes > kAlwaysSentBytes ? large_too : !is_unchanged(known);
  };
  for (const Shared& mirror : chosen(is_due)) {
    size_t sent_bytes = 0;
    if (!mirror->is(MirrorStage::kStale)) (void)push(*mirror, &push_content(), &sent_bytes);
  }
}

std::unique_ptr<MirrorQuestions> ask_with_wait(Session& session, Word word) {
  auto asked = std::make_unique<FetchesWithWait>(session);
  asked->ask(of_session(session), word);
  if (asked->empty()) return nullptr;
  return asked;
}

CUresult pull_mirrors(Session& session, MirrorQuestions* asked) {
  if (!any_mirrored()) [[likely]]
    return CUDA_SUCCESS;
  auto* const early = static_cast<FetchesWithWait*>(asked);
  MutexLock lock(pull_mutex);
  const std::vector<SessionOrder> orders = orders_before(session);
  // `met`: the orders whose earlier work is already over. The fetch below covers this work, so
  // later waits need not cover it.
  std::vector<SessionOrder> met;
  std::ranges::copy_if(orders, std::back_inserter(met), is_met);
  const auto comes_before = [&](Session* other) {
    return !other->lost() &&
           std::ranges::find(orders, other, &SessionOrder::earlier) != orders.end();
  };
  std::vector<Shared> due;
  for (const Shared& mirror : chosen([&](const Mirror& known) {
         return known.session == &session || comes_before(known.session);
       })) {
    {
      // The GPU cannot have changed memory that was never sent.
      MutexLock state(mirrors_mutex);
      if (mirror->is(MirrorStage::kNew) || !mirror->fetched) continue;
    }
    if (early && early->take(*mirror)) continue;
    due.push_back(mirror);
  }
  std::vector<MirrorNews> news;
  if (early) news = early->news();
  const std::vector<CUresult> results = pull(due, news);
  for (size_t i = 0; i < due.size(); ++i) {
    if (results[i] == CUDA_SUCCESS) continue;
    if (due[i]->session == &session || !due[i]->session->lost()) return results[i];
  }
  for (const SessionOrder& order : met) forget_order(session, order);
  return CUDA_SUCCESS;
}

void mirrors_arrived(Session& session, uint64_t loan) {
  for (const Shared& mirror : of_session(session)) {
    MutexLock lock(mirrors_mutex);
    if (!has_exchanged(mirror->stage.get()) || !mirror->lent) continue;
    wire::MirrorLoan lent{};
    std::memcpy(&lent, mirror->lent + wire::MirrorLoan::offset(mirror->bytes), sizeof lent);
    if (lent.number != loan) continue;
    // The worker has already taken over the bytes that earlier host functions changed.
    merge_lent(*mirror, mirror->lent, {lent.patches, loan - 1});
    mirror->loan = loan;
  }
}

void mirrors_leave(Session& session, uint64_t loan) {
  for (const Shared& mirror : of_session(session)) {
    MutexLock lock(mirrors_mutex);
    if (mirror->is(MirrorStage::kEnded) || !mirror->lent || mirror->loan != loan) continue;
    return_changes(*mirror);
    ++mirror->version;
  }
}

}  // namespace rcuda::client
