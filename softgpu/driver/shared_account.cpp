#include "softgpu/driver/shared_account.h"

#include <atomic>
#include <cerrno>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "softgpu/driver/device.h"

namespace softgpu::driver {
namespace {

constexpr int kSlots = 256;
constexpr int kWhole = kSlots;  // a lock on this byte of the file protects the whole account

}  // namespace

struct SharedAccount::Slot {
  std::atomic<uint64_t> bytes[kMaxDevices];
};

rcuda::Result<std::unique_ptr<SharedAccount>> SharedAccount::open(const std::string& path) {
  using rcuda::Status;
  rcuda::UniqueFd file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  if (!file) return Status::from_errno(errno, "SOFTGPU_SHARED_MEMORY=" + path);
  (void)::fchmod(file.get(), 0666);  // workers of several users open the file
  constexpr size_t kBytes = kSlots * sizeof(Slot);
  if (::ftruncate(file.get(), kBytes) != 0) return Status::from_errno(errno, "sizing " + path);
  auto slots = rcuda::map_file_as<Slot>(file.get(), 0, kBytes, PROT_READ | PROT_WRITE);
  if (!slots) return Status::from_errno(errno, "mapping " + path);
  std::unique_ptr<SharedAccount> account(new SharedAccount(std::move(file), std::move(slots)));
  for (int slot = 0; slot < kSlots; ++slot) {
    if (!account->set_lock(F_WRLCK, slot)) continue;
    account->own_ = slot;
    for (auto& bytes : account->slots_.get()[slot].bytes) bytes.store(0);
    return account;
  }
  return Status(rcuda::Code::kUnavailable, "SOFTGPU_SHARED_MEMORY=" + path + ": " +
                                               std::to_string(kSlots) +
                                               " processes already use this file, the most that "
                                               "it allows");
}

bool SharedAccount::set_lock(short type, int place, bool waits) const {
  struct flock lock = {
      .l_type = type, .l_whence = SEEK_SET, .l_start = place, .l_len = 1, .l_pid = 0};
  int result = 0;
  do {
    result = ::fcntl(file_.get(), waits ? F_OFD_SETLKW : F_OFD_SETLK, &lock);
  } while (result != 0 && errno == EINTR);
  return result == 0;
}

bool SharedAccount::is_used(int slot) const {
  struct flock lock = {
      .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = slot, .l_len = 1, .l_pid = 0};
  return ::fcntl(file_.get(), F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

uint64_t SharedAccount::sum_locked(int device) const {
  uint64_t sum = 0;
  for (int slot = 0; slot < kSlots; ++slot) {
    const uint64_t bytes = slots_.get()[slot].bytes[device].load();
    if (bytes != 0 && (slot == own_ || is_used(slot))) sum += bytes;
  }
  return sum;
}

bool SharedAccount::take(int device, uint64_t bytes, uint64_t limit) {
  std::lock_guard guard(mutex_);
  set_lock(F_WRLCK, kWhole, true);
  const uint64_t used = sum_locked(device);
  const bool fits = used <= limit && bytes <= limit - used;
  if (fits) slots_.get()[own_].bytes[device] += bytes;
  set_lock(F_UNLCK, kWhole);
  return fits;
}

void SharedAccount::give(int device, uint64_t bytes) { slots_.get()[own_].bytes[device] -= bytes; }

uint64_t SharedAccount::sum(int device) {
  std::lock_guard guard(mutex_);
  return sum_locked(device);
}

}  // namespace softgpu::driver
