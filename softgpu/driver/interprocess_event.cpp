#include "softgpu/driver/interprocess_event.h"

#include <climits>
#include <cstdio>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "common/base/log.h"
#include "softgpu/driver/context.h"
#include "softgpu/driver/timeline.h"

namespace softgpu::driver {

struct InterprocessEvent::Shared {
  uint64_t magic;
  std::atomic<uint64_t> recorded;
  std::atomic<uint64_t> completed;
  std::atomic<uint32_t> changes;  // the futex word: raised with every completion
};

namespace {

constexpr uint64_t kMagic = 0x73674576'656e7431;
constexpr size_t kPageBytes = 4096;
constexpr int64_t kSpinNs = 20'000;
constexpr long kNapNs = 10'000'000;  // how often a sleeper checks whether its context is ending

struct HandleBytes {
  uint64_t magic;
  int64_t process;
  int32_t descriptor;
  uint32_t reserved;
  uint64_t inode;  // detects a descriptor number that was reused for another file
};
static_assert(sizeof(HandleBytes) <= sizeof(CUipcEventHandle));

void* map_page(int file) {
  void* page = mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  return page == MAP_FAILED ? nullptr : page;
}

}  // namespace

std::shared_ptr<InterprocessEvent> InterprocessEvent::create() {
  rcuda::UniqueFd file(memfd_create("softgpu-event", MFD_CLOEXEC));
  if (!file || ftruncate(file.get(), kPageBytes) != 0) return nullptr;
  auto* shared = static_cast<Shared*>(map_page(file.get()));
  if (shared == nullptr) return nullptr;
  shared->magic = kMagic;
  return std::shared_ptr<InterprocessEvent>(new InterprocessEvent(std::move(file), shared));
}

CUresult InterprocessEvent::open(const CUipcEventHandle& handle,
                                 std::shared_ptr<InterprocessEvent>* event) {
  HandleBytes bytes;
  std::memcpy(&bytes, &handle, sizeof bytes);
  if (bytes.magic != kMagic) return CUDA_ERROR_MAP_FAILED;
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%lld/fd/%d", static_cast<long long>(bytes.process),
                bytes.descriptor);
  rcuda::UniqueFd file(::open(path, O_RDWR | O_CLOEXEC));
  struct stat status {};
  if (!file || fstat(file.get(), &status) != 0 || status.st_ino != bytes.inode ||
      static_cast<size_t>(status.st_size) != kPageBytes) {
    RCUDA_ERROR("cuIpcOpenEventHandle: the event of process %lld is gone or not ours to open",
                static_cast<long long>(bytes.process));
    return CUDA_ERROR_MAP_FAILED;
  }
  auto* shared = static_cast<Shared*>(map_page(file.get()));
  if (shared == nullptr) return CUDA_ERROR_MAP_FAILED;
  if (shared->magic != kMagic) {
    munmap(shared, kPageBytes);
    return CUDA_ERROR_MAP_FAILED;
  }
  event->reset(new InterprocessEvent(std::move(file), shared));
  return CUDA_SUCCESS;
}

InterprocessEvent::~InterprocessEvent() { munmap(shared_, kPageBytes); }

CUipcEventHandle InterprocessEvent::handle() const {
  struct stat status {};
  fstat(file_.get(), &status);
  HandleBytes bytes{kMagic, getpid(), file_.get(), 0, status.st_ino};
  CUipcEventHandle handle{};
  std::memcpy(&handle, &bytes, sizeof bytes);
  return handle;
}

uint64_t InterprocessEvent::begin_recording() {
  return shared_->recorded.fetch_add(1, std::memory_order_acq_rel) + 1;
}

void InterprocessEvent::complete(uint64_t recording) {
  uint64_t now = shared_->completed.load(std::memory_order_relaxed);
  while (now < recording &&
         !shared_->completed.compare_exchange_weak(now, recording, std::memory_order_acq_rel)) {
  }
  shared_->changes.fetch_add(1, std::memory_order_release);
  syscall(SYS_futex, &shared_->changes, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

uint64_t InterprocessEvent::recorded() const {
  return shared_->recorded.load(std::memory_order_acquire);
}

bool InterprocessEvent::reached(uint64_t recording) const {
  return shared_->completed.load(std::memory_order_acquire) >= recording;
}

void InterprocessEvent::wait(uint64_t recording, Context* context) const {
  if (spin_until([&] { return reached(recording); }, kSpinNs)) return;
  for (;;) {
    const uint32_t changes = shared_->changes.load(std::memory_order_acquire);
    if (reached(recording)) return;
    if (context != nullptr && context->stopping().load(std::memory_order_relaxed)) return;
    const timespec nap{0, kNapNs};
    syscall(SYS_futex, &shared_->changes, FUTEX_WAIT, changes, &nap, nullptr, 0);
  }
}

}  // namespace softgpu::driver
