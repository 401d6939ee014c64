#include "server/worker/staging_memory.h"

#include <algorithm>
#include <cerrno>
#include <string>

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/base/start_thread.h"
#include "common/base/units.h"
#include "server/executor/core/session_resources.h"

namespace rcuda::server {
namespace {

constexpr size_t kAlignment = 2u << 20;

// Some pages at a time: the driver maps memory meanwhile, and a call for all pages would delay it.
constexpr size_t kPopulatedAtOnce = 256u << 10;

}  // namespace

Status populate(std::byte* data, size_t bytes) {
  for (size_t at = 0; at < bytes; at += kPopulatedAtOnce) {
    const size_t some = std::min(kPopulatedAtOnce, bytes - at);
    if (::madvise(data + at, some, MADV_POPULATE_WRITE) == 0) continue;
    if (errno == EINVAL) return {};  // kernels before 5.14 lack MADV_POPULATE_WRITE
    const int error = errno == EFAULT ? ENOMEM : errno;
    return Status::from_errno(error, "allocating " + bytes_text(bytes) +
                                         " of staging memory (see --staging-bytes, and the memory "
                                         "limit of the server's or session's cgroup)");
  }
  return {};
}

Result<std::unique_ptr<StagingMemory>> StagingMemory::make(uint64_t staging_bytes) {
  std::unique_ptr<StagingMemory> made(new StagingMemory);
  made->staging_bytes_ = (staging_bytes + kAlignment - 1) / kAlignment * kAlignment;
  made->bytes_ = made->staging_bytes_ + kReplyMemoryBytes + kWaitMarkBytes + kMarkMemoryBytes +
                 kArrivalWordBytes;
  made->file_.reset(::memfd_create("rcuda-staging", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!made->file_ || ::ftruncate(made->file_.get(), static_cast<off_t>(made->bytes_)) != 0) {
    return Status::from_errno(errno, "making a memory file for staging memory");
  }
  void* const data =
      ::mmap(nullptr, made->bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, made->file_.get(), 0);
  if (data == MAP_FAILED) return Status::from_errno(errno, "mapping the staging memory");
  made->data_ = static_cast<std::byte*>(data);
  (void)start_thread(&made->populating_, [raw = made.get()] {
    pthread_setname_np(pthread_self(), "rcuda-staging");
    raw->populated_ = populate(raw->data_, raw->bytes_);
  });
  return made;
}

StagingMemory::~StagingMemory() {
  (void)wait();
  if (data_) ::munmap(data_, bytes_);
}

Status StagingMemory::wait() {
  if (populating_.joinable()) populating_.join();
  return populated_;
}

}  // namespace rcuda::server
