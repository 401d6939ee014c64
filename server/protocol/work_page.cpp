#include "server/protocol/work_page.h"

#include <cerrno>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace rcuda::server {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

}  // namespace

WorkPage::WorkPage(UniqueFd memory, Page* page) : memory_(std::move(memory)), page_(page) {}

WorkPage::WorkPage(WorkPage&& other) noexcept
    : memory_(std::move(other.memory_)), page_(std::exchange(other.page_, nullptr)) {}

WorkPage& WorkPage::operator=(WorkPage&& other) noexcept {
  std::swap(memory_, other.memory_);
  std::swap(page_, other.page_);
  return *this;
}

WorkPage::~WorkPage() {
  if (page_) ::munmap(page_, sizeof(Page));
}

Result<WorkPage> WorkPage::make() {
  UniqueFd memory(::memfd_create("rcuda-work", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory || ::ftruncate(memory.get(), sizeof(Page)) != 0 ||
      ::fcntl(memory.get(), F_ADD_SEALS, kSeals) != 0) {
    return Status::from_errno(errno, "making a page for what a session does");
  }
  return open(std::move(memory));
}

Result<WorkPage> WorkPage::open(UniqueFd memory) {
  struct stat file{};
  const int seals = ::fcntl(memory.get(), F_GET_SEALS);
  if (::fstat(memory.get(), &file) != 0 || file.st_size != sizeof(Page) || seals < 0 ||
      (seals & kSeals) != kSeals) {
    return Status(Code::kProtocol, "what the daemon passed is no page for what a session does");
  }
  void* const page =
      ::mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0);
  if (page == MAP_FAILED) return Status::from_errno(errno, "mapping what a session does");
  return WorkPage(std::move(memory), static_cast<Page*>(page));  // new pages are zero
}

void WorkPage::write(const wire::Work& work) {
  for (size_t i = 0; i < work.counts.size(); ++i) {
    page_->counts[i].store(work.counts[i], std::memory_order_relaxed);
  }
}

wire::Work WorkPage::read() const {
  wire::Work work;
  for (size_t i = 0; i < work.counts.size(); ++i) {
    work.counts[i] = page_->counts[i].load(std::memory_order_relaxed);
  }
  return work;
}

void WorkPage::hold(uint32_t device, uint64_t bytes) {
  if (device < kDevices) page_->held[device].store(bytes, std::memory_order_relaxed);
}

uint64_t WorkPage::held(uint32_t device) const {
  return device < kDevices ? page_->held[device].load(std::memory_order_relaxed) : 0;
}

}  // namespace rcuda::server
