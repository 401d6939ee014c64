#include "client/memory/mirror.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <list>
#include <mutex>
#include <vector>

#include "client/session/staging.h"

namespace rcuda::client {
namespace {

constexpr size_t kBlockBytes = 4096;

struct Mirror {
  Session* session = nullptr;
  wire::ObjectId context = 0;
  std::byte* address = nullptr;
  size_t bytes = 0;
  std::vector<std::byte> known;  // what both sides had when they last met
  bool sent = false;             // known means nothing before the first exchange
};

std::atomic<size_t> mirror_count{0};
std::mutex mirrors_mutex;
std::list<Mirror>& mirrors() {
  static auto* instance = new std::list<Mirror>;
  return *instance;
}

CUresult send(Session& session, wire::ObjectId context, wire::ObjectId stream, const std::byte* from,
              size_t bytes) {
  const auto destination = static_cast<CUdeviceptr>(reinterpret_cast<uintptr_t>(from));
  if (bytes > wire::kMaxInlineBytes) {
    return session.staging().to_device(context, stream, destination, from, bytes);
  }
  const wire::CopyInlineBody body{destination, static_cast<uint32_t>(bytes), stream};
  return session.post(context, static_cast<uint16_t>(wire::Custom::kCopyInline),
                      std::as_bytes(std::span(&body, 1)), {from, bytes});
}

CUresult push(Mirror& mirror, wire::ObjectId context, wire::ObjectId stream) {
  for (size_t at = 0; at < mirror.bytes;) {
    // The longest run of changed blocks.
    size_t end = at;
    while (end < mirror.bytes) {
      const size_t length = std::min(kBlockBytes, mirror.bytes - end);
      if (mirror.sent &&
          std::memcmp(mirror.address + end, mirror.known.data() + end, length) == 0) {
        break;
      }
      end += length;
    }
    if (end == at) {
      at += std::min(kBlockBytes, mirror.bytes - at);
      continue;
    }
    std::memcpy(mirror.known.data() + at, mirror.address + at, end - at);
    const CUresult result =
        send(*mirror.session, context, stream, mirror.address + at, end - at);
    if (result != CUDA_SUCCESS) return result;
    at = end;
  }
  mirror.sent = true;
  return CUDA_SUCCESS;
}

CUresult fetch(const Mirror& mirror, std::vector<std::byte>* there) {
  there->resize(mirror.bytes);
  const auto source = static_cast<CUdeviceptr>(reinterpret_cast<uintptr_t>(mirror.address));
  if (mirror.bytes > 48u << 10) {
    return mirror.session->staging().to_host(mirror.context, 0, there->data(), source, mirror.bytes);
  }
  const wire::CopyToReplyBody body{source, static_cast<uint32_t>(mirror.bytes), 0};
  Reply reply;
  const CUresult result = mirror.session->call(
      mirror.context, static_cast<uint16_t>(wire::Custom::kCopyToReply),
      std::as_bytes(std::span(&body, 1)), {}, mirror.bytes, &reply);
  if (result != CUDA_SUCCESS) return result;
  if (reply.body().size() != mirror.bytes) return CUDA_ERROR_UNKNOWN;
  std::memcpy(there->data(), reply.body().data(), mirror.bytes);
  return CUDA_SUCCESS;
}

CUresult pull(Mirror& mirror) {
  std::vector<std::byte> there;
  if (CUresult result = fetch(mirror, &there); result != CUDA_SUCCESS) return result;
  for (size_t at = 0; at < mirror.bytes; at += kBlockBytes) {
    const size_t length = std::min(kBlockBytes, mirror.bytes - at);
    if (mirror.sent && std::memcmp(there.data() + at, mirror.known.data() + at, length) == 0) continue;
    for (size_t i = at; i < at + length; ++i) {
      if (!mirror.sent || there[i] != mirror.known[i]) mirror.address[i] = there[i];
    }
  }
  mirror.known = std::move(there);
  mirror.sent = true;
  return CUDA_SUCCESS;
}

void add(Session& session, wire::ObjectId context, std::byte* address, size_t bytes) {
  std::lock_guard lock(mirrors_mutex);
  mirrors().push_back({&session, context, address, bytes, std::vector<std::byte>(bytes), false});
  mirror_count.fetch_add(1, std::memory_order_release);
}

}  // namespace

void mirror(Session& session, wire::ObjectId context, void* address, size_t bytes) {
  add(session, context, static_cast<std::byte*>(address), bytes);
}

CUresult mirror_at(Session& session, wire::ObjectId context, CUdeviceptr address, size_t bytes) {
  {
    std::lock_guard lock(mirrors_mutex);
    for (const Mirror& known : mirrors()) {
      if (reinterpret_cast<uintptr_t>(known.address) == address) return CUDA_SUCCESS;
    }
  }
  // Inside the window that the session reserved without access; several variables may share a page.
  static const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  for (uintptr_t at = address / page * page; at < address + bytes; at += page) {
    void* wanted = reinterpret_cast<void*>(at);
    const bool ours = [&] {
      std::lock_guard lock(mirrors_mutex);
      return std::any_of(mirrors().begin(), mirrors().end(), [&](const Mirror& known) {
        const auto first = reinterpret_cast<uintptr_t>(known.address) / page * page;
        return at >= first && at < reinterpret_cast<uintptr_t>(known.address) + known.bytes;
      });
    }();
    if (ours) continue;
    if (mmap(wanted, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) !=
        wanted) {
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
  }
  auto* memory = reinterpret_cast<std::byte*>(address);
  add(session, context, memory, bytes);
  // Its initial value is the worker's.
  std::lock_guard lock(mirrors_mutex);
  return pull(mirrors().back());
}

void unmirror(const void* address) {
  std::lock_guard lock(mirrors_mutex);
  const size_t removed =
      mirrors().remove_if([&](const Mirror& known) { return known.address == address; });
  mirror_count.fetch_sub(removed, std::memory_order_release);
}

CUresult push_mirrors(Session& session, wire::ObjectId context, wire::ObjectId stream) {
  if (mirror_count.load(std::memory_order_acquire) == 0) [[likely]] return CUDA_SUCCESS;
  std::lock_guard lock(mirrors_mutex);
  for (Mirror& known : mirrors()) {
    if (known.session != &session) continue;
    if (CUresult result = push(known, context, stream); result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

CUresult pull_mirrors(Session& session) {
  if (mirror_count.load(std::memory_order_acquire) == 0) [[likely]] return CUDA_SUCCESS;
  std::lock_guard lock(mirrors_mutex);
  for (Mirror& known : mirrors()) {
    // What was never sent, nothing on the GPU can have changed.
    if (known.session != &session || !known.sent) continue;
    if (CUresult result = pull(known); result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

}  // namespace rcuda::client
