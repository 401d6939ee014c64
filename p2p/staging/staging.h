// Staging buffers: page-locked host memory that a peer on the same host may map, GPU memory that a
// NIC can reach, and the mapping of a peer's inbox. Owned by the engine thread. Construction and
// destruction block in the driver.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "common/transport/link.h"
#include "p2p/api/device_ops.h"

namespace rcuda::p2p {

// Whether a peer on this host will map the memory.
enum class Mappable : bool { kNo, kYes };

// Host memory that is registered with CUDA. Mappable memory is a memfd. Other memory is anonymous,
// because a memfd gets no 2 MB pages by default, and large pages are faster to populate, to
// page-lock and to access.
class HostBuffer {
 public:
  ~HostBuffer();
  HostBuffer(const HostBuffer&) = delete;
  HostBuffer& operator=(const HostBuffer&) = delete;

  static Result<std::shared_ptr<HostBuffer>> create(DeviceOps& ops, size_t bytes,
                                                    Mappable mappable);

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  int fd() const { return file_.get(); }  // -1: not mappable

 private:
  HostBuffer(DeviceOps& ops, size_t bytes) : ops_(ops), bytes_(bytes) {}
  Status map_file();
  Status map_large_pages();

  DeviceOps& ops_;
  std::byte* data_ = nullptr;
  const size_t bytes_;
  bool registered_ = false;
  UniqueFd file_;
};

class DeviceBuffer {
 public:
  static Result<DeviceBuffer> create(DeviceOps& ops, int device, size_t bytes);

  DeviceAddress address() const { return reinterpret_cast<DeviceAddress>(memory_.get()); }
  size_t bytes() const { return memory_ ? bytes_ : 0; }

 private:
  struct Free {
    DeviceOps* ops;
    int device;
    void operator()(void* memory) const {
      ops->free(device, reinterpret_cast<DeviceAddress>(memory));
    }
  };
  std::unique_ptr<void, Free> memory_;
  size_t bytes_ = 0;
};

// The peer's pinned inbox, mapped and registered with CUDA in this process.
class MappedInbox {
 public:
  ~MappedInbox();
  MappedInbox(const MappedInbox&) = delete;
  MappedInbox& operator=(const MappedInbox&) = delete;

  // Maps and registers the inbox. kUnsupported if the medium cannot map. `link` outlives the
  // mapping.
  static Result<std::unique_ptr<MappedInbox>> create(DeviceOps& ops, transport::Link& link,
                                                     transport::RegionId region, size_t bytes);
  uint64_t address() const { return reinterpret_cast<uint64_t>(data_); }

 private:
  MappedInbox(DeviceOps& ops, transport::Link& link, transport::RegionId region, void* data)
      : ops_(ops), link_(link), region_(region), data_(data) {}

  DeviceOps& ops_;
  transport::Link& link_;
  const transport::RegionId region_;
  void* const data_;
  bool registered_ = false;
};

}  // namespace rcuda::p2p
