#include "server/protocol/work_page.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include <sys/mman.h>

namespace rcuda::server {

Result<WorkPage> WorkPage::make() {
  UniqueFd memory = make_sealed_memory("rcuda-work", sizeof(Page));
  if (!memory) return Status::from_errno(errno, "making a session's work page");
  return open(std::move(memory));
}

Result<WorkPage> WorkPage::open(UniqueFd memory) {
  if (!is_sealed_memory(memory.get(), sizeof(Page))) {
    return Status(Code::kProtocol, "the daemon passed memory that is not a work page");
  }
  auto page = map_file_as<Page>(memory.get(), 0, sizeof(Page), PROT_READ | PROT_WRITE);
  if (!page) return Status::from_errno(errno, "mapping a session's work page");
  return WorkPage(std::move(memory), std::move(page));  // new pages are zero
}

std::string WorkPage::layout() {
  std::string text = "work";
  for (const auto& name : wire::kWorkNames) text += std::string(",") + name;
  return text + ",held" + std::to_string(kDevices) + ",kept_free,communicators" +
         std::to_string(kCommunicators) +
         ",used,idle_end,used_at,lost_since,over_at,losses,fell_back;" +
         std::to_string(sizeof(Page));
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

void WorkPage::keep_free(uint32_t device, uint64_t bytes) {
  if (device < kDevices) page_->kept_free[device].store(bytes, std::memory_order_relaxed);
}

uint64_t WorkPage::kept_free(uint32_t device) const {
  return device < kDevices ? page_->kept_free[device].load(std::memory_order_relaxed) : 0;
}

void WorkPage::set_lost_since(uint64_t ns, bool counts) {
  page_->lost_since.store(ns, std::memory_order_relaxed);
  if (ns != 0 && counts) page_->losses.fetch_add(1, std::memory_order_relaxed);
}

void WorkPage::replace_tag(uint64_t old, uint64_t tag) {
  for (uint32_t i = 0; i < kCommunicators; ++i) {
    std::atomic<uint64_t>& slot = page_->communicators[i];
    if (slot.load(std::memory_order_relaxed) != old) continue;
    slot.store(tag, std::memory_order_relaxed);
    if (i >= page_->used.load(std::memory_order_relaxed)) page_->used.store(i + 1);
    return;
  }
}

void WorkPage::leave_all() {
  for (std::atomic<uint64_t>& slot : page_->communicators) slot.store(0, std::memory_order_relaxed);
  page_->used.store(0);
}

std::vector<uint64_t> WorkPage::communicators() const {
  std::vector<uint64_t> tags;
  const size_t used = std::min<size_t>(page_->used.load(), kCommunicators);
  for (size_t i = 0; i < used; ++i) {
    const uint64_t tag = page_->communicators[i].load(std::memory_order_relaxed);
    if (tag != 0) tags.push_back(tag);
  }
  return tags;
}

uint64_t WorkPage::held(uint32_t device) const {
  return device < kDevices ? page_->held[device].load(std::memory_order_relaxed) : 0;
}

}  // namespace rcuda::server
