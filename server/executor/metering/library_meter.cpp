#include "server/executor/metering/library_meter.h"

#include <utility>

namespace rcuda::server {

LibraryMeter::LibraryMeter(MemoryMeter& meter, const std::vector<SessionDevice>& devices)
    : meter_(meter) {
  for (const SessionDevice& device : devices) contexts_[device.device] = 1;
}

Result<LibraryMeter::Sizes> LibraryMeter::measure(
    const std::function<Result<uint64_t>(CUdevice)>& measure_on) const {
  Sizes sizes;
  for (const auto& [device, count] : contexts_) {
    RCUDA_ASSIGN_OR_RETURN(const uint64_t bytes, measure_on(device));
    if (bytes) sizes[device] = bytes;
  }
  return sizes;
}

bool LibraryMeter::book(const Sizes& sizes) {
  Sizes booked;
  for (const auto& [device, bytes] : sizes) {
    uint64_t all = 0;
    if (__builtin_mul_overflow(bytes, contexts_.at(device), &all)) all = UINT64_MAX;
    if (!meter_.take(device, all)) {
      give_back(booked);
      return false;
    }
    booked[device] = bytes;
  }
  return true;
}

void LibraryMeter::give(const Sizes& sizes) {
  for (const auto& [device, bytes] : sizes) meter_.give(device, bytes * contexts_.at(device));
}

void LibraryMeter::give_back(const Sizes& sizes) {
  for (const auto& [device, bytes] : sizes) {
    meter_.give_back(device, bytes * contexts_.at(device));
  }
}

LibraryMeter::Sizes LibraryMeter::remove(CUlibrary library) {
  const auto found = libraries_.find(library);
  if (found == libraries_.end()) return {};
  Sizes sizes = std::move(found->second);
  libraries_.erase(found);
  return sizes;
}

uint64_t LibraryMeter::bytes_on(CUdevice device) const {
  uint64_t sum = 0;
  for (const auto& [library, sizes] : libraries_) {
    const auto found = sizes.find(device);
    if (found != sizes.end()) sum += found->second;
  }
  return sum;
}

bool LibraryMeter::add(CUcontext context, CUdevice device) {
  if (!meter_.take(device, bytes_on(device))) return false;
  ++contexts_[device];
  made_[context] = device;
  return true;
}

void LibraryMeter::end(CUcontext context) {
  const auto found = made_.find(context);
  if (found == made_.end()) return;
  meter_.give(found->second, bytes_on(found->second));
  --contexts_[found->second];
  made_.erase(found);
}

}  // namespace rcuda::server
