// SharedAccount: the device memory that all processes with the same file (SOFTGPU_SHARED_MEMORY)
// use together. Without the setting, each process has its devices for itself.
//
// The file has a slot for each process. A process locks its slot for as long as it runs. The kernel
// releases the lock of a killed process, so the bytes in its slot no longer count. take() also
// locks the whole account while it works.
//
// Any thread. Blocking: take() waits for other processes and threads, sum() for other threads; both
// only briefly. Errors: open() returns the system's errors, and kUnavailable if all slots are
// taken.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "common/base/memory_file.h"
#include "common/base/status.h"
#include "common/base/unique_fd.h"

namespace softgpu::driver {

class SharedAccount {
 public:
  static rcuda::Result<std::unique_ptr<SharedAccount>> open(const std::string& path);
  // `device`: the device's number on the machine. take() returns false if all processes together
  // would have more than `limit` bytes.
  bool take(int device, uint64_t bytes, uint64_t limit);
  void give(int device, uint64_t bytes);
  uint64_t sum(int device);

 private:
  struct Slot;
  SharedAccount(rcuda::UniqueFd file, rcuda::Mapped<Slot> slots)
      : file_(std::move(file)), slots_(std::move(slots)) {}
  bool set_lock(short type, int place, bool waits = false) const;
  bool is_used(int slot) const;
  uint64_t sum_locked(int device) const;

  const rcuda::UniqueFd file_;
  const rcuda::Mapped<Slot> slots_;
  std::mutex mutex_;  // for threads of this process; they share a lock of the file
  int own_ = -1;
};

}  // namespace softgpu::driver
