// Staging buffers: page-locked host memory that a peer on the same host may map, GPU memory that a
// NIC can reach, and the mapping of a peer's inbox. Owned by the engine thread. Construction and
// destruction block for the driver's registration.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "common/transport/link.h"
#include "p2p/api/device_ops.h"

namespace rcuda::p2p {

// Whether a peer on this host will map the memory.
enum class Mappable : bool { kNo, kYes };

// Memory on one NUMA node, registered with CUDA. Mappable memory is a memfd. Other memory is
// anonymous, in pages as large as the kernel grants: large pages are faster to populate, to
// page-lock and to walk through, and by default a memfd gets none of 2 MB.
class HostBuffer {
 public:
  HostBuffer() = default;
  HostBuffer(HostBuffer&& other) noexcept { swap(other); }
  HostBuffer& operator=(HostBuffer&& other) noexcept {
    swap(other);
    return *this;
  }
  ~HostBuffer();

  // numa_node < 0: no preference.
  static Result<HostBuffer> create(DeviceOps& ops, size_t bytes, int numa_node, Mappable mappable);

  std::byte* data() const { return data_; }
  uint64_t address() const { return reinterpret_cast<uint64_t>(data_); }
  size_t bytes() const { return bytes_; }
  int fd() const { return file_.get(); }  // -1: not mappable

 private:
  Status map_file();
  Status map_large_pages();
  void swap(HostBuffer& other) noexcept;

  DeviceOps* ops_ = nullptr;
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
  bool registered_ = false;
  UniqueFd file_;
};

class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(DeviceBuffer&& other) noexcept { swap(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    swap(other);
    return *this;
  }
  ~DeviceBuffer();

  static Result<DeviceBuffer> create(DeviceOps& ops, int device, size_t bytes);

  DeviceAddress address() const { return address_; }
  size_t bytes() const { return bytes_; }

 private:
  void swap(DeviceBuffer& other) noexcept;

  DeviceOps* ops_ = nullptr;
  int device_ = 0;
  DeviceAddress address_ = 0;
  size_t bytes_ = 0;
};

// The peer's pinned inbox, mapped and registered with CUDA in this process.
class MappedInbox {
 public:
  MappedInbox() = default;
  MappedInbox(MappedInbox&& other) noexcept { swap(other); }
  MappedInbox& operator=(MappedInbox&& other) noexcept {
    swap(other);
    return *this;
  }
  ~MappedInbox();

  // kUnsupported if the medium cannot map. `link` outlives the mapping.
  static Result<MappedInbox> create(DeviceOps& ops, transport::Link& link,
                                    transport::RegionId region, size_t bytes);
  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  void swap(MappedInbox& other) noexcept;

  DeviceOps* ops_ = nullptr;
  transport::Link* link_ = nullptr;
  transport::RegionId region_ = transport::RegionId::kNone;
  void* data_ = nullptr;
  size_t bytes_ = 0;
  bool registered_ = false;
};

}  // namespace rcuda::p2p
