#include "client/process/mirror.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>

#include "client/channel/staging.h"
#include "common/base/log.h"
#include "common/base/unique_fd.h"

namespace rcuda::client {
namespace {

constexpr size_t kBlockBytes = 4096;

struct Mirror {
  Session* session = nullptr;
  wire::ObjectId context = 0;
  std::byte* address = nullptr;
  size_t bytes = 0;
  // Guarded by mirrors_mutex.
  std::vector<std::byte> known;  // the bytes at the last exchange, equal on both sides
  bool sent = false;             // exchanged at least once; before, `known` has no meaning
  uint64_t version = 0;          // of `known`
  uint64_t loan = 0;             // the last one whose bytes were merged
  bool removed = false;          // `address` may be unmapped already
  // The two halves of the region. The worker writes and reads `exchanged` around host functions,
  // and writes `fetched` on request.
  std::byte* exchanged = nullptr;
  std::byte* fetched = nullptr;
  transport::RegionId region{};
};
using Shared = std::shared_ptr<Mirror>;

std::atomic<size_t> mirror_count{0};
// Held only briefly: the thread of the host functions takes it, and a thread that waits for the
// worker may be waiting for a host function.
std::mutex mirrors_mutex;
// Ensures that bytes enter the command ring in the order in which they were found changed, and that
// none are sent after the worker has dropped the memory.
std::mutex push_mutex;
std::mutex pull_mutex;      // guards `fetched`
std::mutex variable_mutex;  // guards mirror_at(): a variable is mapped and mirrored only once
std::vector<Shared>& mirrors() {
  static auto* instance = new std::vector<Shared>;
  return *instance;
}

std::vector<Shared> of_session(const Session& session) {
  std::vector<Shared> found;
  std::lock_guard lock(mirrors_mutex);
  for (const Shared& mirror : mirrors()) {
    if (mirror->session == &session) found.push_back(mirror);
  }
  return found;
}

// Does not report errors of earlier commands: these bytes are sent anyway, and the launch that
// follows reports the errors.
CUresult send(const Target& target, const std::byte* to, const std::byte* from, size_t bytes) {
  const auto destination = static_cast<CUdeviceptr>(reinterpret_cast<uintptr_t>(to));
  if (bytes > wire::kMaxInlineBytes) {
    return target.session->staging().to_device(target, destination, from, bytes);
  }
  const wire::CopyInlineBody body{destination, static_cast<uint32_t>(bytes), stream_id(target)};
  return target.session->post(target, static_cast<uint16_t>(wire::Custom::kCopyInline),
                              std::as_bytes(std::span(&body, 1)), {from, bytes});
}

struct Run {
  size_t at, bytes;
};

// Returns the runs of blocks that the application changed; `content` gets their bytes.
std::vector<Run> changed(const Mirror& mirror, std::vector<std::byte>* content) {
  std::vector<Run> runs;
  std::lock_guard lock(mirrors_mutex);
  for (size_t at = 0; at < mirror.bytes; at += kBlockBytes) {
    const size_t length = std::min(kBlockBytes, mirror.bytes - at);
    if (mirror.sent && std::memcmp(mirror.address + at, mirror.known.data() + at, length) == 0) {
      continue;
    }
    if (runs.empty() || runs.back().at + runs.back().bytes != at) {
      runs.push_back({at, length});
    } else {
      runs.back().bytes += length;
    }
    content->insert(content->end(), mirror.address + at, mirror.address + at + length);
  }
  return runs;
}

// Notes that both sides have these bytes now. Bytes that could not be sent stay changed, for the
// next push.
void note_sent(Mirror& mirror, const Run& run, const std::byte* content) {
  std::lock_guard lock(mirrors_mutex);
  std::memcpy(mirror.known.data() + run.at, content, run.bytes);
  ++mirror.version;
}

// Sends the blocks that the application changed. After a failure the rest stays unsent.
CUresult push(const Target& target, Mirror& mirror, std::vector<std::byte>* content) {
  content->clear();
  const std::vector<Run> runs = changed(mirror, content);
  const std::byte* from = content->data();
  for (const Run& run : runs) {
    const CUresult result = send(target, mirror.address + run.at, from, run.bytes);
    if (result != CUDA_SUCCESS) return result;
    note_sent(mirror, run, from);
    from += run.bytes;
  }
  std::lock_guard lock(mirrors_mutex);
  mirror.sent = true;
  return CUDA_SUCCESS;
}

// Copies the bytes that the worker changed since the last exchange into the application's memory.
void merge(Mirror& mirror, const std::byte* there) {
  for (size_t at = 0; at < mirror.bytes; at += kBlockBytes) {
    const size_t length = std::min(kBlockBytes, mirror.bytes - at);
    std::byte* known = mirror.known.data() + at;
    if (mirror.sent && std::memcmp(there + at, known, length) == 0) continue;
    for (size_t i = 0; i < length; ++i) {
      if (!mirror.sent || there[at + i] != known[i]) mirror.address[at + i] = there[at + i];
    }
    std::memcpy(known, there + at, length);
  }
  mirror.sent = true;
  ++mirror.version;
}

CUresult pull(Mirror& mirror) {
  const wire::MirrorFetchBody body{reinterpret_cast<uintptr_t>(mirror.address)};
  for (int attempt = 0;; ++attempt) {
    uint64_t version;
    {
      std::lock_guard lock(mirrors_mutex);
      version = mirror.version;
    }
    Reply reply;
    const CUresult result = mirror.session->call(mirror.session->in_context(mirror.context),
                                                 static_cast<uint16_t>(wire::Custom::kMirrorFetch),
                                                 std::as_bytes(std::span(&body, 1)), {}, 0, &reply);
    std::lock_guard lock(mirrors_mutex);
    // Another thread is freeing the memory, and the worker may already know.
    if (mirror.removed && result != kSessionLost) return CUDA_SUCCESS;
    if (result != CUDA_SUCCESS) return result;
    // Another exchange took place during the call, so these bytes may be older: fetch them again.
    // The number of attempts is limited, because a stream whose work never ends must not keep the
    // caller for ever. The bytes of the last attempt are used in any case.
    constexpr int kAttempts = 4;
    if (mirror.version != version && attempt < kAttempts) continue;
    merge(mirror, mirror.fetched);
    return CUDA_SUCCESS;
  }
}

// Exposes the region for the worker's bytes and tells the worker about the mirror. Without both,
// the memory is not mirrored.
CUresult introduce(Mirror& mirror) {
  static const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t half = (wire::MirrorLoan::region_bytes(mirror.bytes) + page - 1) / page * page;
  UniqueFd backing(memfd_create("rcuda-mirror", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!backing || ftruncate(backing.get(), static_cast<off_t>(2 * half)) != 0) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  void* memory = mmap(nullptr, 2 * half, PROT_READ | PROT_WRITE, MAP_SHARED, backing.get(), 0);
  if (memory == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  Result<transport::Region> region =
      mirror.session->link().expose(memory, 2 * half, backing.get(), 0);
  if (!region) {
    RCUDA_WARN("memory could not be shared with %s: %s", mirror.session->name().c_str(),
               region.status().message().c_str());
    munmap(memory, 2 * half);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  mirror.exchanged = static_cast<std::byte*>(memory);
  mirror.fetched = mirror.exchanged + half;
  mirror.region = region->id;
  const wire::MirrorBody body{reinterpret_cast<uintptr_t>(mirror.address), mirror.bytes,
                              static_cast<uint64_t>(region->id), half};
  Reply reply;
  const CUresult result = mirror.session->call(mirror.session->in_context(mirror.context),
                                               static_cast<uint16_t>(wire::Custom::kMirror),
                                               std::as_bytes(std::span(&body, 1)), {}, 0, &reply);
  if (result != CUDA_SUCCESS) {
    (void)mirror.session->link().unexpose(region->id);
    munmap(memory, 2 * half);
  }
  return result;
}

// The reverse of introduce().
void withdraw(Mirror& mirror) {
  const wire::MirrorFetchBody body{reinterpret_cast<uintptr_t>(mirror.address)};
  Reply reply;
  (void)mirror.session->call(mirror.session->in_context(0),
                             static_cast<uint16_t>(wire::Custom::kUnmirror),
                             std::as_bytes(std::span(&body, 1)), {}, 0, &reply);
  (void)mirror.session->link().unexpose(mirror.region);
  std::scoped_lock lock(pull_mutex, mirrors_mutex);
  munmap(mirror.exchanged, 2 * static_cast<size_t>(mirror.fetched - mirror.exchanged));
  mirror.exchanged = mirror.fetched = nullptr;
}

// `from_worker`: the worker has the first bytes. They are fetched before other threads can push the
// memory, which is still zero here.
CUresult add(Session& session, wire::ObjectId context, std::byte* address, size_t bytes,
             bool from_worker) {
  auto mirror = std::make_shared<Mirror>();
  mirror->session = &session;
  mirror->context = context;
  mirror->address = address;
  mirror->bytes = bytes;
  mirror->known.resize(bytes);
  if (CUresult result = introduce(*mirror); result != CUDA_SUCCESS) {
    RCUDA_WARN("%zu bytes at %p are not mirrored with %s: CUDA error %d", bytes,
               static_cast<void*>(address), session.name().c_str(), static_cast<int>(result));
    return result;
  }
  if (from_worker) {
    const CUresult pulled = [&] {
      std::lock_guard lock(pull_mutex);
      return pull(*mirror);
    }();
    if (pulled != CUDA_SUCCESS) {
      withdraw(*mirror);
      return pulled;
    }
  }
  static constexpr MirrorHooks kHooks{mirrors_arrived, mirrors_leave, pull_mirrors};
  session.set_mirror_hooks(&kHooks);
  std::lock_guard lock(mirrors_mutex);
  mirrors().push_back(std::move(mirror));
  mirror_count.fetch_add(1, std::memory_order_release);
  return CUDA_SUCCESS;
}

}  // namespace

void mirror(Session& session, wire::ObjectId context, void* address, size_t bytes) {
  (void)add(session, context, static_cast<std::byte*>(address), bytes, false);
}

CUresult mirror_at(Session& session, wire::ObjectId context, CUdeviceptr address, size_t bytes) {
  std::lock_guard once(variable_mutex);
  {
    std::lock_guard lock(mirrors_mutex);
    for (const Shared& known : mirrors()) {
      if (reinterpret_cast<uintptr_t>(known->address) == address) return CUDA_SUCCESS;
    }
  }
  // The range is inside the window that the session reserved without access. Several variables may
  // share a page.
  static const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  for (uintptr_t at = address / page * page; at < address + bytes; at += page) {
    void* wanted = reinterpret_cast<void*>(at);
    const bool ours = [&] {
      std::lock_guard lock(mirrors_mutex);
      return std::any_of(mirrors().begin(), mirrors().end(), [&](const Shared& known) {
        const auto first = reinterpret_cast<uintptr_t>(known->address) / page * page;
        return at >= first && at < reinterpret_cast<uintptr_t>(known->address) + known->bytes;
      });
    }();
    if (ours) continue;
    if (mmap(wanted, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
             0) != wanted) {
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
  }
  return add(session, context, reinterpret_cast<std::byte*>(address), bytes, true);
}

void unmirror(const void* address) {
  std::vector<Shared> removed;
  {
    std::scoped_lock lock(push_mutex, mirrors_mutex);
    std::vector<Shared>& all = mirrors();
    const auto first = std::stable_partition(
        all.begin(), all.end(), [&](const Shared& known) { return known->address != address; });
    removed.assign(first, all.end());
    all.erase(first, all.end());
    for (const Shared& mirror : removed) mirror->removed = true;
    mirror_count.fetch_sub(removed.size(), std::memory_order_release);
  }
  for (const Shared& mirror : removed) withdraw(*mirror);
}

bool any_mirrored() { return mirror_count.load(std::memory_order_acquire) != 0; }

bool is_mirrored(const Session& session, uint64_t address, size_t bytes) {
  if (!any_mirrored()) [[likely]]
    return false;
  std::lock_guard lock(mirrors_mutex);
  return std::any_of(mirrors().begin(), mirrors().end(), [&](const Shared& known) {
    const auto base = reinterpret_cast<uintptr_t>(known->address);
    return known->session == &session && address < base + known->bytes && base < address + bytes;
  });
}

CUresult push_mirrors(const Target& target) {
  if (!any_mirrored()) [[likely]]
    return CUDA_SUCCESS;
  std::lock_guard lock(push_mutex);
  std::vector<std::byte> content;
  for (const Shared& mirror : of_session(*target.session)) {
    const CUresult result = push(target, *mirror, &content);
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

CUresult pull_mirrors(Session& session) {
  if (!any_mirrored()) [[likely]]
    return CUDA_SUCCESS;
  std::lock_guard lock(pull_mutex);
  for (const Shared& mirror : of_session(session)) {
    {
      // The GPU cannot have changed memory that was never sent.
      std::lock_guard state(mirrors_mutex);
      if (!mirror->sent || !mirror->fetched) continue;
    }
    if (CUresult result = pull(*mirror); result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

void mirrors_arrived(Session& session, uint64_t loan) {
  for (const Shared& mirror : of_session(session)) {
    std::lock_guard lock(mirrors_mutex);
    if (mirror->removed || !mirror->exchanged || !mirror->sent) continue;
    uint64_t lent = 0;
    std::memcpy(&lent, mirror->exchanged + wire::MirrorLoan::offset(mirror->bytes), sizeof lent);
    if (lent != loan) continue;
    merge(*mirror, mirror->exchanged);
    mirror->loan = loan;
  }
}

void mirrors_leave(Session& session, uint64_t loan) {
  for (const Shared& mirror : of_session(session)) {
    std::lock_guard lock(mirrors_mutex);
    if (mirror->removed || !mirror->exchanged || mirror->loan != loan) continue;
    std::memcpy(mirror->known.data(), mirror->address, mirror->bytes);
    std::memcpy(mirror->exchanged, mirror->known.data(), mirror->bytes);
    ++mirror->version;
  }
}

}  // namespace rcuda::client
