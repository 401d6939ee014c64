#include "p2p/staging/staging.h"

#include <cerrno>

#include <sys/mman.h>
#include <unistd.h>

namespace rcuda::p2p {
namespace {

constexpr size_t kLargePage = size_t{2} << 20;  // on x86-64

}  // namespace

HostBuffer::~HostBuffer() {
  if (registered_) ops_.unregister_host(data_);
  if (data_) ::munmap(data_, bytes_);
}

Status HostBuffer::map_file() {
  file_.reset(::memfd_create("rcuda-p2p-staging", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file_) return Status::from_errno(errno, "making a memory file (memfd_create)");
  if (::ftruncate(file_.get(), static_cast<off_t>(bytes_)) != 0) {
    return Status::from_errno(errno, "sizing the memory file (ftruncate)");
  }
  void* base = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), 0);
  if (base == MAP_FAILED) return Status::from_errno(errno, "mapping the memory file (mmap)");
  data_ = static_cast<std::byte*>(base);
  return {};
}

// Maps one large page more than needed, then unmaps the excess at both ends, so that the buffer
// begins at a multiple of the large page's size.
Status HostBuffer::map_large_pages() {
  void* base = ::mmap(nullptr, bytes_ + kLargePage, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) return Status::from_errno(errno, "mapping memory (mmap)");
  auto* const start = static_cast<std::byte*>(base);
  const size_t before = -reinterpret_cast<uintptr_t>(base) % kLargePage;
  data_ = start + before;
  if (before > 0) ::munmap(start, before);
  ::munmap(data_ + bytes_, kLargePage - before);
  (void)::madvise(data_, bytes_, MADV_HUGEPAGE);
  return {};
}

Result<std::shared_ptr<HostBuffer>> HostBuffer::create(DeviceOps& ops, size_t bytes,
                                                       Mappable mappable) {
  std::shared_ptr<HostBuffer> buffer(new HostBuffer(ops, bytes));
  RCUDA_RETURN_IF_ERROR(mappable == Mappable::kYes ? buffer->map_file()
                                                   : buffer->map_large_pages());
  RCUDA_RETURN_IF_ERROR(ops.register_host(buffer->data_, bytes));
  buffer->registered_ = true;
  return buffer;
}

Result<DeviceBuffer> DeviceBuffer::create(DeviceOps& ops, int device, size_t bytes) {
  RCUDA_ASSIGN_OR_RETURN(const DeviceAddress address, ops.allocate(device, bytes));
  DeviceBuffer buffer;
  buffer.memory_ = {reinterpret_cast<void*>(address), Free{&ops, device}};
  buffer.bytes_ = bytes;
  return buffer;
}

MappedInbox::~MappedInbox() {
  if (registered_) ops_.unregister_host(data_);
  // Ignore an error: it means that the Link is broken and has dropped the region, and the mapping
  // then ends with the Link.
  (void)link_.unmap(region_);
}

Result<std::unique_ptr<MappedInbox>> MappedInbox::create(DeviceOps& ops, transport::Link& link,
                                                         transport::RegionId region, size_t bytes) {
  RCUDA_ASSIGN_OR_RETURN(void* const mapped, link.map(region, bytes));
  if (mapped == nullptr) {
    return Status(Code::kUnsupported, std::string("cannot map the peer worker's inbox over ") +
                                          link.medium() + ": the peer exposed it without a file");
  }
  std::unique_ptr<MappedInbox> inbox(new MappedInbox(ops, link, region, mapped));
  RCUDA_RETURN_IF_ERROR(ops.register_host(mapped, bytes));
  inbox->registered_ = true;
  return inbox;
}

}  // namespace rcuda::p2p
