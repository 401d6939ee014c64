#include "server/executor/metering/device_meter.h"

#include <algorithm>
#include <utility>

#include "common/base/log.h"

namespace rcuda::server {
namespace {

double mib(uint64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

}  // namespace

DeviceMeter::DeviceMeter(const api::DriverTable& driver, const std::vector<SessionDevice>& devices,
                         std::shared_ptr<Quota> quota)
    : driver_(driver), devices_(devices), quota_(std::move(quota)) {}

CUresult DeviceMeter::current(Place* place) const {
  if (CUresult result = driver_.cuCtxGetCurrent(&place->context); result != CUDA_SUCCESS) {
    return result;
  }
  return driver_.cuCtxGetDevice(&place->device);
}

std::optional<uint32_t> DeviceMeter::ordinal_of(CUdevice device) const {
  const auto found =
      std::find_if(devices_.begin(), devices_.end(),
                   [&](const SessionDevice& known) { return known.device == device; });
  return found == devices_.end() ? std::nullopt : std::optional(found->ordinal);
}

bool DeviceMeter::try_take(CUdevice device, uint64_t bytes) {
  const auto ordinal = ordinal_of(device);
  return ordinal && quota_->take_device(*ordinal, bytes);
}

bool DeviceMeter::take(CUdevice device, uint64_t bytes) {
  if (try_take(device, bytes)) return true;
  if (reclaim) {
    reclaim();
    if (try_take(device, bytes)) return true;
  }
  warn(device, bytes);
  return false;
}

void DeviceMeter::add(CUdevice device, uint64_t bytes) {
  if (const auto ordinal = ordinal_of(device)) quota_->add_device(*ordinal, bytes);
}

void DeviceMeter::give(CUdevice device, uint64_t bytes) {
  if (const auto ordinal = ordinal_of(device)) quota_->give_device(*ordinal, bytes);
}

std::optional<Quota::Room> DeviceMeter::room(CUdevice device) const {
  const auto ordinal = ordinal_of(device);
  return ordinal ? quota_->device_room(*ordinal) : std::nullopt;
}

void DeviceMeter::warn(CUdevice device, uint64_t bytes) {
  const auto free = room(device);
  if (!free || warned_.exchange(true)) return;
  RCUDA_WARN(
      "the program asked for %.1f MiB of device %u, but %s may use %.1f MiB of a device and %.1f "
      "MiB "
      "are left: it gets CUDA_ERROR_OUT_OF_MEMORY. It can free memory or end other sessions; or "
      "raise device_memory in the server's configuration file",
      mib(bytes), ordinal_of(device).value_or(0), free->by->of.c_str(),
      mib(free->by->device_memory), mib(free->free));
}

// ---- bookings ----------------------------------------------------------------------------------

void Bookings::put(uint64_t object, const Booking& booking) {
  std::lock_guard lock(mutex_);
  // The object that had this number before ended without a call that showed it.
  const auto [at, added] = bookings_.emplace(object, booking);
  if (!added) give(std::exchange(at->second, booking));
}

std::optional<Bookings::Booking> Bookings::remove(uint64_t object) {
  std::lock_guard lock(mutex_);
  const auto found = bookings_.find(object);
  if (found == bookings_.end()) return std::nullopt;
  const Booking booking = found->second;
  bookings_.erase(found);
  return booking;
}

void Bookings::give(const Booking& booking) { meter_.give(booking.place.device, booking.bytes); }

void Bookings::give_all_of(CUcontext context) {
  std::lock_guard lock(mutex_);
  std::erase_if(bookings_, [&](const auto& entry) {
    if (entry.second.place.context != context) return false;
    give(entry.second);
    return true;
  });
}

}  // namespace rcuda::server
