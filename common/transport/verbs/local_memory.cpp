#include "common/transport/verbs/local_memory.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>

#include "common/base/log.h"
#include "common/base/units.h"
#include "common/transport/mapping.h"
#include "common/transport/verbs/errors.h"

namespace rcuda::transport::verbs {
namespace {

constexpr int kAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;

// Bounds of the measured threshold. Below kMinThreshold, a registration never saves the time of its
// system calls. Above kMaxThreshold, a copy always costs more CPU time than a registration.
constexpr size_t kMinThreshold = 16u << 10;
constexpr size_t kMaxThreshold = 1u << 20;

template <typename F>
double best_us(F&& work) {
  double best = 1e9;
  for (int i = 0; i < 3; ++i) {
    const auto start = std::chrono::steady_clock::now();
    work();
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
    best = std::min(best, took.count());
  }
  return best;
}

size_t measure_threshold(ibv_pd* pd) {
  constexpr size_t kSmall = 64u << 10;
  constexpr size_t kLarge = 512u << 10;
  const Mapping memory = Mapping::anonymous(2 * kLarge);
  if (!memory) return kMaxThreshold;
  std::memset(memory.data(), 1, 2 * kLarge);
  bool refused = false;
  const auto registering_us = [&](size_t bytes) {
    return best_us(
        [&] { refused |= !Mr(ibv_reg_mr(pd, memory.data(), bytes, IBV_ACCESS_LOCAL_WRITE)); });
  };
  const double small_us = registering_us(kSmall);
  const double large_us = registering_us(kLarge);
  const double copy_us =
      best_us([&] { std::memcpy(memory.data() + kLarge, memory.data(), kLarge); }) / kLarge;
  const double page_us = std::max(0.0, (large_us - small_us) / (kLarge - kSmall));  // per byte
  const double fixed_us = std::max(0.0, small_us - page_us * kSmall);
  const double even = copy_us > page_us ? fixed_us / (copy_us - page_us) : kMaxThreshold;
  const size_t threshold =
      refused ? kMaxThreshold
              : std::clamp(static_cast<size_t>(std::min<double>(even, kMaxThreshold)),
                           kMinThreshold, kMaxThreshold);
  RCUDA_INFO(
      "verbs: pageable memory is registered for transfers of %s or more, and copied for smaller "
      "ones (measured: a copy takes %s per MiB, a registration %s plus %s per MiB)",
      bytes_text(threshold).c_str(), microseconds_text(copy_us * (1u << 20)).c_str(),
      microseconds_text(fixed_us).c_str(), microseconds_text(page_us * (1u << 20)).c_str());
  return threshold;
}

}  // namespace

Result<std::shared_ptr<Registration>> LocalMemory::add(std::shared_ptr<Registration> registration) {
  registrations_.fetch_add(1, std::memory_order_relaxed);
  MutexLock lock(mutex_);
  longest_ = std::max(longest_, registration->bytes);
  exposed_.emplace(registration->base, registration);
  return registration;
}

Result<std::shared_ptr<Registration>> LocalMemory::expose(void* base, size_t bytes) {
  auto made = std::make_shared<Registration>();
  made->base = reinterpret_cast<uintptr_t>(base);
  made->bytes = bytes;
  made->mr.reset(ibv_reg_mr(pd_, base, bytes, kAccess));
  if (!made->mr) return registration_error(errno, bytes);
  return add(std::move(made));
}

Result<std::shared_ptr<Registration>> LocalMemory::expose_device(void* base, size_t bytes,
                                                                 const DeviceMemory& memory) {
  const bool as_dma_buf = memory.dma_buf >= 0;
  auto made = std::make_shared<Registration>();
  made->base = reinterpret_cast<uintptr_t>(base);
  made->bytes = bytes;
  made->mr.reset(as_dma_buf ? ibv_reg_dmabuf_mr(pd_, memory.dma_buf_offset, bytes, made->base,
                                                memory.dma_buf, kAccess)
                            : ibv_reg_mr(pd_, base, bytes, kAccess));
  if (!made->mr) {
    return Status::from_errno(errno, "registering " + exact_bytes_text(bytes) +
                                         " of device memory for RDMA " +
                                         (as_dma_buf ? "as dma-buf" : "by its address"));
  }
  return add(std::move(made));
}

void LocalMemory::withdraw(const std::shared_ptr<Registration>& registration) {
  MutexLock lock(mutex_);
  const auto [first, last] = exposed_.equal_range(registration->base);
  const auto found =
      std::find_if(first, last, [&](const auto& entry) { return entry.second == registration; });
  if (found != last) exposed_.erase(found);
}

std::shared_ptr<Registration> LocalMemory::find(const void* local, size_t bytes) {
  const auto address = reinterpret_cast<uintptr_t>(local);
  MutexLock lock(mutex_);
  // Regions may overlap: checks all that begin at or before this address and may contain it.
  for (auto at = exposed_.upper_bound(address); at != exposed_.begin();) {
    --at;
    if (address - at->first > longest_) break;
    if (at->second->contains(address, bytes)) return at->second;
  }
  return nullptr;
}

size_t LocalMemory::threshold() {
  static const size_t bytes = measure_threshold(pd_);
  return bytes;
}

std::shared_ptr<Registration> LocalMemory::prepare(const void* local, size_t bytes) {
  if (std::shared_ptr<Registration> exposed = find(local, bytes)) return exposed;
  if (bytes < kMinThreshold || bytes < threshold()) return nullptr;
  auto made = std::make_shared<Registration>();
  made->base = reinterpret_cast<uintptr_t>(local);
  made->bytes = bytes;
  made->mr.reset(ibv_reg_mr(pd_, const_cast<void*>(local), bytes, IBV_ACCESS_LOCAL_WRITE));
  if (made->mr) {
    registrations_.fetch_add(1, std::memory_order_relaxed);
    return made;
  }
  // EFAULT: the memory is read-only, which is not a configuration error.
  if (const int error = errno; error != EFAULT && !refusal_reported_.exchange(true)) {
    RCUDA_WARN(
        "verbs: transfers copy pageable memory instead of registering it, which is slower: %s",
        registration_error(error, bytes).context().c_str());
  }
  return nullptr;
}

}  // namespace rcuda::transport::verbs
