#include "server/executor/host_memory/gpu_direct.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>

#include "common/base/list_text.h"
#include "common/base/log.h"
#include "common/cuda/status_of.h"
#include "p2p/staging/device_region.h"
#include "server/executor/host_memory/dma_buf.h"
#include "server/executor/objects/context_guard.h"

namespace rcuda::server {
namespace {

// Below this size, copying through the shadow costs less than the driver queries about the memory.
constexpr uint64_t kLeastBytes = 4096;
// Allocations are registered in parts of this size and alignment: large enough to serve many
// copies, small enough to register while a copy waits.
constexpr uint64_t kPartBytes = 64ull << 20;
constexpr size_t kMostRegistrations = 64;
constexpr size_t kProbeBytes = 64u << 10;
constexpr auto kLongestProbeCopy = std::chrono::seconds(1);

// Memory and a stream of the device under test.
struct Probe {
  explicit Probe(const api::DriverTable& table) : driver(table) {}
  ~Probe() {
    if (stream) driver.cuStreamDestroy_v2(stream);
    if (host) driver.cuMemFreeHost(host);
    if (memory) driver.cuMemFree_v2(memory);
  }

  // Makes the memory and the stream, except those that an earlier call has made.
  Status make() {
    if (stream) return {};
    if (!memory) {
      RCUDA_RETURN_IF_ERROR(status_of(driver.cuMemAlloc_v2(&memory, kProbeBytes), "cuMemAlloc"));
    }
    if (!host) {
      RCUDA_RETURN_IF_ERROR(
          status_of(driver.cuMemHostAlloc(&host, 2 * kProbeBytes, CU_MEMHOSTALLOC_PORTABLE),
                    "cuMemHostAlloc"));
    }
    return status_of(driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  }
  std::byte* out() const { return static_cast<std::byte*>(host); }
  std::byte* in() const { return out() + kProbeBytes; }

  // Polls, with a time limit. The program's work may occupy all queues of the device, and a
  // synchronisation would wait for this work.
  Status finish() {
    const auto end = std::chrono::steady_clock::now() + kLongestProbeCopy;
    for (;;) {
      const CUresult result = driver.cuStreamQuery(stream);
      if (result != CUDA_ERROR_NOT_READY) return status_of(result, "cuStreamQuery");
      if (std::chrono::steady_clock::now() >= end) {
        return {Code::kTimeout, "the probe's copy timed out: other work fills the device's queues"};
      }
      std::this_thread::yield();
    }
  }
  // Copies by the driver, to compare with the copies by the adapter.
  Status to_host() {
    RCUDA_RETURN_IF_ERROR(status_of(driver.cuMemcpyDtoHAsync_v2(in(), memory, kProbeBytes, stream),
                                    "cuMemcpyDtoHAsync"));
    return finish();
  }
  Status to_device() {
    RCUDA_RETURN_IF_ERROR(status_of(driver.cuMemcpyHtoDAsync_v2(memory, out(), kProbeBytes, stream),
                                    "cuMemcpyHtoDAsync"));
    return finish();
  }
  void fill(uint64_t seed) {
    for (size_t i = 0; i < kProbeBytes / sizeof seed; ++i) {
      const uint64_t word = (seed + i) * 0x9e3779b97f4a7c15;
      std::memcpy(out() + i * sizeof word, &word, sizeof word);
    }
    std::memset(in(), 0, kProbeBytes);
  }
  bool same() const { return std::memcmp(in(), out(), kProbeBytes) == 0; }

  const api::DriverTable& driver;
  CUdeviceptr memory = 0;
  void* host = nullptr;
  CUstream stream = nullptr;
};

// Registers memory that only transfers of this side use.
Result<transport::Region> expose(const api::DriverTable& driver, transport::Link& link,
                                 CUdeviceptr address, uint64_t bytes, Registered how) {
  std::optional<p2p::DmaBuf> dma_buf;
  if (how == Registered::kAsDmaBuf) {
    RCUDA_ASSIGN_OR_RETURN(dma_buf, export_dma_buf(driver, address, bytes));
  }
  return p2p::expose_device_memory(dma_buf, link, address, bytes, p2p::For::kThisSide);
}

// Copies both ways through the adapter, and compares the bytes. The probe's host memory and its GPU
// memory must be registered.
Status compare(Probe& probe, transport::Link& link) {
  void* const memory = reinterpret_cast<void*>(probe.memory);
  probe.fill(0x5eed);
  RCUDA_RETURN_IF_ERROR(link.loop_back(memory, probe.out(), kProbeBytes));
  RCUDA_RETURN_IF_ERROR(probe.to_host());
  if (!probe.same())
    return {Code::kSystem, "GPU memory has wrong bytes after the adapter wrote to it"};
  probe.fill(0xfeed);
  RCUDA_RETURN_IF_ERROR(probe.to_device());
  RCUDA_RETURN_IF_ERROR(link.loop_back(probe.in(), memory, kProbeBytes));
  if (probe.same()) return {};
  return {Code::kSystem, "the adapter read wrong bytes from GPU memory"};
}

Status prove(Probe& probe, transport::Link& link, CUdevice device, Registered how) {
  if (!orders_adapter_writes(probe.driver, device)) return {Code::kUnsupported, kWritesOutOfOrder};
  RCUDA_RETURN_IF_ERROR(probe.make());
  RCUDA_RETURN_IF_ERROR(probe.finish());  // an earlier probe may have run out of time
  RCUDA_ASSIGN_OR_RETURN(const transport::Region region,
                         expose(probe.driver, link, probe.memory, kProbeBytes, how));
  const Result<transport::Region> host = link.expose_device(
      probe.host, 2 * kProbeBytes, {.for_peer = false});  // host memory; the peer never uses it
  Status status = host ? compare(probe, link) : host.status();
  if (host) (void)link.unexpose(host->id);
  (void)link.unexpose(region.id);
  return status;
}

}  // namespace

std::optional<Registered> prove_gpudirect(const api::DriverTable& driver, transport::Link& link,
                                          CUdevice device, std::shared_ptr<void>* memory,
                                          std::optional<Registered> only) {
  if (!*memory) *memory = std::make_shared<Probe>(driver);
  Probe& probe = *static_cast<Probe*>(memory->get());
  std::string refusals;
  for (const Registered how : {Registered::kAsDmaBuf, Registered::kByAddress}) {
    if (only.value_or(how) != how) continue;
    const char* const name = how == Registered::kAsDmaBuf ? "dma-buf" : "by address";
    const Status proven = prove(probe, link, device, how);
    if (proven.ok()) {
      RCUDA_INFO("GPUDirect on device %d (%s): proven by a probe transfer", device, name);
      return how;
    }
    append_item(&refusals, std::string(name) + ": " + proven.context(), "; ");
  }
  RCUDA_INFO("GPUDirect is unavailable on device %d, so copies go through host memory: %s", device,
             refusals.c_str());
  return std::nullopt;
}

struct GpuDirect::Registration {
  Registration(transport::Link& owner, CUdeviceptr first, uint64_t size, unsigned long long buffer,
               transport::RegionId id)
      : link(owner), base(first), bytes(size), buffer_id(buffer), region(id) {}
  ~Registration() { (void)link.unexpose(region); }
  bool contains(CUdeviceptr address, uint64_t count) const {
    return address >= base && address - base < bytes && count <= bytes - (address - base);
  }

  transport::Link& link;
  const CUdeviceptr base;
  const uint64_t bytes;
  const unsigned long long buffer_id;
  const transport::RegionId region;
};

GpuDirect::~GpuDirect() = default;

void GpuDirect::prove(const std::vector<SessionDevice>& devices) {
  if (!link_.traits().has_adapter) return;
  for (const SessionDevice& device : devices) {
    const ContextGuard inside(driver_, device.primary);
    if (!inside.ok()) continue;
    std::shared_ptr<void> memory;
    const auto how = prove_gpudirect(driver_, link_, device.device, &memory);
    if (how) proven_[device.device] = *how;
  }
}

// Returns the id of the allocation at the address. The driver never reuses an id.
std::optional<unsigned long long> GpuDirect::buffer_id(CUdeviceptr address) const {
  unsigned long long id = 0;
  if (driver_.cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, address) != CUDA_SUCCESS) {
    return std::nullopt;
  }
  return id;
}

std::shared_ptr<GpuDirect::Registration> GpuDirect::reach(CUdeviceptr address, uint64_t bytes) {
  const std::optional<unsigned long long> id = buffer_id(address);
  if (!id) return nullptr;
  for (auto at = registrations_.begin(); at != registrations_.end(); ++at) {
    if (!(*at)->contains(address, bytes)) continue;
    if ((*at)->buffer_id != *id) {
      registrations_.erase(at);
      break;
    }
    registrations_.splice(registrations_.begin(), registrations_, at);
    return registrations_.front();
  }

  unsigned type = 0, managed = 0, plain = 0;
  int device = -1;
  CUmemoryPool pool = nullptr;
  std::array attributes{CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED,
                        CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
                        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE};
  std::array<void*, attributes.size()> values{&type, &managed, &plain, &device, &pool};
  if (driver_.cuPointerGetAttributes(attributes.size(), attributes.data(), values.data(),
                                     address) != CUDA_SUCCESS ||
      type != CU_MEMORYTYPE_DEVICE || managed || pool ||
      (!plain && !movable_.is_allocation(address))) {
    return nullptr;
  }
  CUdeviceptr base = 0;
  size_t size = 0;
  const auto proven = proven_.find(device);
  if (proven == proven_.end() ||
      driver_.cuMemGetAddressRange_v2(&base, &size, address) != CUDA_SUCCESS) {
    return nullptr;
  }
  const CUdeviceptr first = std::max(base, address / kPartBytes * kPartBytes);
  const CUdeviceptr last =
      std::min(base + size, (address + bytes + kPartBytes - 1) / kPartBytes * kPartBytes);
  if (last < address + bytes) return nullptr;  // spans two allocations
  Result<transport::Region> region = expose(driver_, link_, first, last - first, proven->second);
  if (!region && !registrations_.empty()) {
    registrations_.clear();  // may free the missing resource: pinned memory or adapter entries
    region = expose(driver_, link_, first, last - first, proven->second);
  }
  if (!region) {
    RCUDA_DEBUG("cannot register GPU memory with the adapter, so the copy uses host memory: %s",
                region.status().message().c_str());
    return nullptr;
  }
  registrations_.push_front(
      std::make_shared<Registration>(link_, first, last - first, *id, region->id));
  if (registrations_.size() > kMostRegistrations) registrations_.pop_back();
  return registrations_.front();
}

void GpuDirect::sweep() {
  registrations_.remove_if([this](const std::shared_ptr<Registration>& registration) {
    return buffer_id(registration->base) != registration->buffer_id;
  });
}

std::shared_ptr<const void> GpuDirect::find_registered(CUdeviceptr address, uint64_t bytes) {
  return bytes < kLeastBytes ? nullptr : reach(address, bytes);
}

}  // namespace rcuda::server
