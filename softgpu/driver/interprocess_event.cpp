#include "softgpu/driver/interprocess_event.h"

#include <climits>
#include <cstring>
#include <optional>
#include <utility>

#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "common/base/log.h"
#include "softgpu/driver/context.h"
#include "softgpu/driver/exports.h"
#include "softgpu/driver/memory.h"
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
constexpr int64_t kSpinNs = 20'000;
constexpr long kNapNs = 10'000'000;  // how often a sleeper checks whether its context is ending

static_assert(sizeof(ExportHandle) <= sizeof(CUipcEventHandle));

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
  ExportHandle bytes;
  std::memcpy(static_cast<void*>(&bytes), &handle, sizeof bytes);
  if (!bytes.is_valid(ExportKind::kEvent)) return CUDA_ERROR_MAP_FAILED;
  rcuda::Result<LookupResult> fetched = fetch(bytes);
  if (!fetched) return CUDA_ERROR_MAP_FAILED;
  rcuda::UniqueFd file = std::move(fetched->descriptor);
  struct stat status {};
  if (fstat(file.get(), &status) != 0 || static_cast<size_t>(status.st_size) != kPageBytes) {
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

InterprocessEvent::InterprocessEvent(rcuda::UniqueFd file, Shared* shared)
    : id_(next_memory_id()), file_(std::move(file)), shared_(shared) {}

CUresult InterprocessEvent::get_handle(CUipcEventHandle* handle) const {
  const rcuda::Result<ExportHandle> made =
      offer(ExportKind::kEvent, id_, [exported = weak_from_this()]() -> std::optional<Export> {
        const auto event = exported.lock();
        if (!event) return std::nullopt;
        return Export{{}, event->file_.get(), event};
      });
  if (!made) {
    RCUDA_ERROR("cuIpcGetEventHandle cannot export the event: %s", made.status().message().c_str());
    return CUDA_ERROR_OPERATING_SYSTEM;
  }
  *handle = {};
  std::memcpy(handle, &*made, sizeof *made);
  return CUDA_SUCCESS;
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
