// MemoryMeter: books memory of devices and of the host with the session's Quota, and counts the
// bytes that the session holds on each device, with a limit or without.
//
// Executor thread only. Blocking: take() calls reclaim(), which calls the driver. take() and
// give_way() wait while a session that wakes needs the free memory; with_room() waits while the
// daemon parks other sessions. Errors: the functions that book return false if the bytes do not
// fit. The session's first refusal by a quota is reported to the client and in the log, with the
// remedy. If the daemon can park no other session for an allocation, the client gets one message.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <vector>

#include <cuda.h>

#include "api/driver_table.h"
#include "common/messages/work.h"
#include "server/executor/objects/objects.h"
#include "server/quota/quota.h"

namespace rcuda::server {

// Rounds `bytes` up to a multiple of `unit`. Returns UINT64_MAX if that overflows.
uint64_t rounded(uint64_t bytes, uint64_t unit);
// The bytes that the driver uses for an allocation: it cuts small allocations from pages of 2 MiB,
// and rounds others up to such pages.
uint64_t held_by(uint64_t bytes);

class MemoryMeter {
 public:
  static constexpr CUdevice kHost = -1;  // stands for the host's memory

  // note_peak() writes to `done`. The driver and `done` outlive this object.
  MemoryMeter(const api::DriverTable& driver, const std::vector<SessionDevice>& devices,
              std::shared_ptr<Quota> quota, wire::Work* done);

  // Called before a refusal: makes the driver release memory that it only keeps for reuse.
  std::function<void()> reclaim;

  // Sends the text of a refusal to the client.
  std::function<void(const std::string& text)> tell;

  // Returns the bytes that must stay free on a device, because another session wakes and needs
  // them. `ordinal`: the server's number of the device. Empty: no bytes must stay free.
  std::function<uint64_t(uint32_t ordinal)> kept_free;

  // Requests to the daemon, which parks other sessions to make room. Empty without
  // oversubscription.
  struct Others {
    // Waits until `bytes` bytes are free on a device. `ordinal`: the server's number of the device;
    // `free`: the bytes that are free now. Returns false if no other session can make room.
    std::function<bool(uint32_t ordinal, uint64_t bytes, uint64_t free)> make_room;
    std::function<void()> used_room;  // to be called after the last make_room()
    // The bytes that other sessions could free, in addition to the `free` bytes.
    std::function<uint64_t(uint32_t ordinal, uint64_t free)> could_free;
  };
  Others others;

  // The current context of the calling thread, and its device.
  struct Place {
    CUdevice device = 0;
    CUcontext context = nullptr;
  };
  CUresult current(Place* place) const;

  // Books bytes. Returns false if they do not fit, even after reclaim().
  bool take(CUdevice device, uint64_t bytes);
  // As take(), but without reclaim().
  bool try_take(CUdevice device, uint64_t bytes);
  // To be called before memory is allocated; take() calls it. Waits until kept_free() bytes stay
  // free after the allocation: without these bytes, a session that is waking could not get its
  // memory back and would be lost. If the device is not the current one, waits until kept_free() is
  // 0.
  void give_way(CUdevice device, uint64_t bytes) const;
  void give_way(uint64_t bytes) const;  // on the current device
  // Calls `allocate`, which allocates bytes of a device (nullopt: the current device) with the
  // driver. Calls it again each time that other sessions have made room.
  template <typename Allocate>
  CUresult with_room(std::optional<CUdevice> device, uint64_t bytes, Allocate allocate) {
    CUresult result = allocate();
    if (result != CUDA_ERROR_OUT_OF_MEMORY || !others.make_room) return result;
    while (result == CUDA_ERROR_OUT_OF_MEMORY && make_room(device, bytes)) result = allocate();
    others.used_room();
    return result;
  }
  // Books bytes that are in use already, even if they do not fit.
  void add(CUdevice device, uint64_t bytes);
  void give(CUdevice device, uint64_t bytes);
  // Releases bytes that were booked for an allocation that the driver then refused. The peak does
  // not include them.
  void give_back(CUdevice device, uint64_t bytes);
  // Releases the bookings of the memory that a park moves off the devices: at most `bytes` of each
  // device. held() stays the same.
  void give_up(const std::map<CUdevice, uint64_t>& bytes);
  void give_up();  // for all bytes that are booked on devices
  // Books the memory of give_up() again. Returns false and books nothing if it does not fit now.
  bool take_back();
  bool has_given_up() const { return has_given_up_; }
  // Moves the bookings to other devices of the server. `ordinals`: in the session's order.
  void move(const std::vector<uint32_t>& ordinals);
  std::vector<uint32_t> ordinals() const;
  void note_peak();  // to be called before the peak is read
  std::optional<Quota::Room> room(CUdevice device) const;
  uint64_t could_free(CUdevice device, uint64_t free) const;  // see Others
  uint64_t held(uint32_t ordinal) const;  // bytes that are booked on a device of the session
  // Reports the session's first refusal by a quota, to the client and in the log.
  void warn(CUdevice device, uint64_t bytes);

 private:
  struct Device {
    CUdevice device = 0;  // or kHost
    uint32_t row = 0;     // of the Ledger
    uint64_t held = 0;
    uint64_t given_up = 0;
  };
  bool make_room(std::optional<CUdevice> device, uint64_t bytes);
  Device* find(CUdevice device);
  const Device* find(CUdevice device) const;

  const api::DriverTable& driver_;
  std::vector<Device> devices_;
  const std::shared_ptr<Quota> quota_;
  wire::Work* const done_;
  bool warned_ = false;
  bool told_no_room_ = false;
  bool has_given_up_ = false;
};

// The number of a handle or an address.
template <typename Object>
uint64_t number_of(Object object) {
  if constexpr (std::is_pointer_v<Object>) {
    return reinterpret_cast<uint64_t>(object);
  } else {
    return object;
  }
}

// The bookings of objects of one kind, by address or handle. They end with the objects, or with
// the objects' context.
class Bookings {
 public:
  explicit Bookings(MemoryMeter& meter) : meter_(meter) {}

  struct Booking {
    MemoryMeter::Place place;
    uint64_t bytes = 0;
    uint32_t references = 1;  // more: memory of another process that was opened again
  };
  // Records the booking of an object whose bytes are booked already.
  void put(uint64_t object, const Booking& booking);
  // To be called before the object ends. The bytes stay booked: call give() when the object has
  // ended, or put() if it has not.
  std::optional<Booking> remove(uint64_t object);
  void give(const Booking& booking);
  void give_all_of(CUcontext context);

 private:
  MemoryMeter& meter_;
  std::unordered_map<uint64_t, Booking> bookings_;
};

}  // namespace rcuda::server
