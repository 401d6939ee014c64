#include "server/worker/staging_memory.h"

#include <cerrno>

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/base/start_thread.h"
#include "server/executor/session_resources.h"

namespace rcuda::server {
namespace {

constexpr size_t kAlignment = 2u << 20;

// One page at a time: the driver maps memory meanwhile, and a call for all pages would hold it up.
void touch(std::byte* data, size_t bytes) {
  pthread_setname_np(pthread_self(), "rcuda-staging");
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  for (size_t at = 0; at < bytes; at += page) {
    *const_cast<volatile std::byte*>(data + at) = std::byte{0};
  }
}

}  // namespace

Result<std::unique_ptr<StagingMemory>> StagingMemory::make(uint64_t staging_bytes) {
  std::unique_ptr<StagingMemory> made(new StagingMemory);
  made->staging_bytes_ = (staging_bytes + kAlignment - 1) / kAlignment * kAlignment;
  made->bytes_ = made->staging_bytes_ + kReplyMemoryBytes;
  made->file_.reset(::memfd_create("rcuda-staging", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!made->file_ || ::ftruncate(made->file_.get(), static_cast<off_t>(made->bytes_)) != 0) {
    return Status::from_errno(errno, "making the staging region");
  }
  void* const data =
      ::mmap(nullptr, made->bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, made->file_.get(), 0);
  if (data == MAP_FAILED) return Status::from_errno(errno, "mapping the staging region");
  made->data_ = static_cast<std::byte*>(data);
  (void)start_thread(&made->toucher_, [raw = made.get()] { touch(raw->data_, raw->bytes_); });
  return made;
}

StagingMemory::~StagingMemory() {
  wait();
  if (data_) ::munmap(data_, bytes_);
}

void StagingMemory::wait() {
  if (toucher_.joinable()) toucher_.join();
}

}  // namespace rcuda::server
