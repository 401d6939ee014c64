// StagingMemory: the memory through which a worker's client copies, followed by the memory for
// replies, GPU-written words and gates. DeviceSet page-locks it.
//
// The memory is a file without a name, so a client on this host can map it and fill it without
// another copy. Page-locking memory that has no pages yet takes ten times as long (31 ms against 3
// ms for 66 MB on an H100's host), so a thread populates it while the driver starts.
//
// Threads: one of its own, from make() to wait(). Blocking: wait() and the destructor, until that
// thread has ended. Errors name what the system refused. If the thread cannot be started, the
// page-locking allocates the pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>

#include "common/base/status.h"
#include "common/base/unique_fd.h"

namespace rcuda::server {

class StagingMemory {
 public:
  // `staging_bytes`: without the memory after it; rounded up to a multiple of 2 MiB.
  static Result<std::unique_ptr<StagingMemory>> make(uint64_t staging_bytes);
  ~StagingMemory();
  StagingMemory(const StagingMemory&) = delete;
  StagingMemory& operator=(const StagingMemory&) = delete;

  // Waits until the pages are allocated. Returns an error if the machine or the cgroup has too
  // little memory. (A thread that touched the missing pages would be killed.)
  Status wait();

  std::byte* data() const { return data_; }
  size_t staging_bytes() const { return staging_bytes_; }
  size_t bytes() const { return bytes_; }  // with the memory for replies
  int file() const { return file_.get(); }

 private:
  StagingMemory() = default;

  UniqueFd file_;
  std::byte* data_ = nullptr;
  size_t staging_bytes_ = 0;
  size_t bytes_ = 0;
  std::thread populating_;
  Status populated_;  // valid when the thread has ended
};

// Allocates the pages of shared memory. Returns an error if there is too little memory.
Status populate(std::byte* data, size_t bytes);

}  // namespace rcuda::server
