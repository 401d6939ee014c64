#include "server/executor/metering/memory_meter.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <utility>

#include "common/base/log.h"
#include "common/base/units.h"
#include "common/cuda/return_if_error.h"

namespace rcuda::server {
namespace {

constexpr uint64_t kSmallest = 512;
constexpr uint64_t kPage = 2u << 20;
constexpr auto kWayPause = std::chrono::milliseconds(1);

}  // namespace

uint64_t rounded(uint64_t bytes, uint64_t unit) {
  return bytes > UINT64_MAX - unit ? UINT64_MAX : (bytes + unit - 1) / unit * unit;
}

uint64_t held_by(uint64_t bytes) { return rounded(bytes, bytes < kPage / 2 ? kSmallest : kPage); }

MemoryMeter::MemoryMeter(const api::DriverTable& driver, const std::vector<SessionDevice>& devices,
                         std::shared_ptr<Quota> quota, wire::Work* done)
    : driver_(driver), quota_(std::move(quota)), done_(done) {
  for (const SessionDevice& device : devices) devices_.push_back({device.device, device.ordinal});
  devices_.push_back({kHost, Ledger::kHostMemory});
}

CUresult MemoryMeter::current(Place* place) const {
  RCUDA_RETURN_IF_CUDA_ERROR(driver_.cuCtxGetCurrent(&place->context));
  return driver_.cuCtxGetDevice(&place->device);
}

const MemoryMeter::Device* MemoryMeter::find(CUdevice device) const {
  const auto found = std::find_if(devices_.begin(), devices_.end(),
                                  [&](const Device& known) { return known.device == device; });
  return found == devices_.end() ? nullptr : &*found;
}

MemoryMeter::Device* MemoryMeter::find(CUdevice device) {
  return const_cast<Device*>(std::as_const(*this).find(device));
}

void MemoryMeter::note_peak() {
  for (const Device& device : devices_) {
    if (device.device != kHost) done_->held(device.held);
  }
}

uint64_t MemoryMeter::held(uint32_t ordinal) const {
  const auto found = std::find_if(devices_.begin(), devices_.end(),
                                  [&](const Device& known) { return known.row == ordinal; });
  return found == devices_.end() ? 0 : found->held;
}

bool MemoryMeter::try_take(CUdevice device, uint64_t bytes) {
  Device* const known = find(device);
  // Not a device of the session. Without a limit the call goes on, and the driver returns the
  // error.
  if (!known) return !quota_->limits(&Allowance::device_memory);
  if (!quota_->take(known->row, bytes)) return false;
  known->held += bytes;
  return true;
}

void MemoryMeter::give_way(CUdevice device, uint64_t bytes) const {
  const Device* const known = find(device);
  if (!kept_free || !known || device == kHost) return;
  while (const uint64_t kept = kept_free(known->row)) {
    Place place;
    size_t free = 0, total = 0;
    const bool is_known = current(&place) == CUDA_SUCCESS && place.device == device &&
                          driver_.cuMemGetInfo_v2(&free, &total) == CUDA_SUCCESS;
    if (is_known && free >= bytes && free - bytes >= kept) return;
    std::this_thread::sleep_for(kWayPause);
  }
}

// Queries the current device only if a session wakes, to keep frequent allocations cheap.
void MemoryMeter::give_way(uint64_t bytes) const {
  const bool any_kept = kept_free && std::ranges::any_of(devices_, [this](const Device& device) {
    return device.device != kHost && kept_free(device.row) > 0;
  });
  Place place;
  if (any_kept && current(&place) == CUDA_SUCCESS) give_way(place.device, bytes);
}

bool MemoryMeter::make_room(std::optional<CUdevice> device, uint64_t bytes) {
  Place place;
  const bool has_context = current(&place) == CUDA_SUCCESS;
  if (!device && !has_context) return false;
  const Device* const known = find(device.value_or(place.device));
  if (!known || known->device == kHost) return false;
  size_t free = 0, total = 0;
  const bool is_current = has_context && place.device == known->device;
  if (!is_current || driver_.cuMemGetInfo_v2(&free, &total) != CUDA_SUCCESS) free = 0;
  if (others.make_room(known->row, bytes, free)) return true;
  if (tell && !std::exchange(told_no_room_, true)) {
    tell("the program asked for " + bytes_text(bytes) + " of device " + std::to_string(known->row) +
         ", which has no room: no other session can be parked, or the sessions together would hold "
         "more than the server's setting oversubscribe permits. The call gets "
         "CUDA_ERROR_OUT_OF_MEMORY: free memory, or try again later");
  }
  return false;
}

uint64_t MemoryMeter::could_free(CUdevice device, uint64_t free) const {
  const Device* const known = find(device);
  return known && device != kHost ? others.could_free(known->row, free) : 0;
}

bool MemoryMeter::take(CUdevice device, uint64_t bytes) {
  give_way(device, bytes);
  if (try_take(device, bytes)) return true;
  if (reclaim) {
    reclaim();
    if (try_take(device, bytes)) return true;
  }
  warn(device, bytes);
  return false;
}

void MemoryMeter::add(CUdevice device, uint64_t bytes) {
  Device* const known = find(device);
  if (!known) return;
  quota_->add(known->row, bytes);
  known->held += bytes;
}

void MemoryMeter::give(CUdevice device, uint64_t bytes) {
  note_peak();
  give_back(device, bytes);
}

void MemoryMeter::give_back(CUdevice device, uint64_t bytes) {
  Device* const known = find(device);
  if (!known) return;
  quota_->give(known->row, bytes);
  known->held -= bytes;
}

void MemoryMeter::give_up(const std::map<CUdevice, uint64_t>& bytes) {
  has_given_up_ = true;
  for (Device& device : devices_) {
    const auto limit = bytes.find(device.device);
    device.given_up = limit == bytes.end() ? 0 : std::min(device.held, limit->second);
    quota_->give(device.row, device.given_up);
  }
}

void MemoryMeter::give_up() {
  std::map<CUdevice, uint64_t> all;
  for (const Device& device : devices_) {
    if (device.device != kHost) all[device.device] = device.held;
  }
  give_up(all);
}

bool MemoryMeter::take_back() {
  for (auto device = devices_.begin(); device != devices_.end(); ++device) {
    if (quota_->take(device->row, device->given_up)) continue;
    while (device != devices_.begin()) {
      --device;
      quota_->give(device->row, device->given_up);
    }
    return false;
  }
  has_given_up_ = false;
  return true;
}

void MemoryMeter::move(const std::vector<uint32_t>& ordinals) {
  for (size_t i = 0; i < ordinals.size() && devices_[i].device != kHost; ++i) {
    Device& device = devices_[i];
    const uint32_t before = std::exchange(device.row, ordinals[i]);
    if (has_given_up_ || before == device.row) continue;
    quota_->give(before, device.held);
    quota_->add(device.row, device.held);
  }
}

std::vector<uint32_t> MemoryMeter::ordinals() const {
  std::vector<uint32_t> all;
  for (const Device& device : devices_) {
    if (device.device != kHost) all.push_back(device.row);
  }
  return all;
}

std::optional<Quota::Room> MemoryMeter::room(CUdevice device) const {
  const Device* const known = find(device);
  return known ? quota_->room(known->row) : std::nullopt;
}

void MemoryMeter::warn(CUdevice device, uint64_t bytes) {
  const auto free = room(device);
  if (!free || std::exchange(warned_, true)) return;
  const bool host = device == kHost;
  const Device* const known = find(device);
  const std::string where =
      host ? "page-locked host memory" : "device " + std::to_string(known ? known->row : 0);
  const std::string text =
      "the program asked for " + bytes_text(bytes) + " of " + where + ", but " + free->by->of +
      " may use " + bytes_text(host ? free->by->host_memory : free->by->device_memory) +
      " of it and " + bytes_text(free->free) +
      " are left: the call gets CUDA_ERROR_OUT_OF_MEMORY. Free memory, end other sessions of the "
      "program's user, or raise " +
      (host ? "host_memory" : "device_memory") + " in the server's configuration file";
  RCUDA_WARN("%s", text.c_str());
  if (tell) tell(text);
}

// ---- bookings ----------------------------------------------------------------------------------

void Bookings::put(uint64_t object, const Booking& booking) {
  // If there is a booking with this number, its object has ended, but no call reported that.
  const auto [at, added] = bookings_.emplace(object, booking);
  if (!added) give(std::exchange(at->second, booking));
}

std::optional<Bookings::Booking> Bookings::remove(uint64_t object) {
  const auto found = bookings_.find(object);
  if (found == bookings_.end()) return std::nullopt;
  const Booking booking = found->second;
  bookings_.erase(found);
  return booking;
}

void Bookings::give(const Booking& booking) { meter_.give(booking.place.device, booking.bytes); }

void Bookings::give_all_of(CUcontext context) {
  std::erase_if(bookings_, [&](const auto& entry) {
    if (entry.second.place.context != context) return false;
    give(entry.second);
    return true;
  });
}

}  // namespace rcuda::server
