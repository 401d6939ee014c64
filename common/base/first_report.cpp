#include "common/base/first_report.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <functional>

#include <dlfcn.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace rcuda {
namespace {

// In memory that a process shares with its children. Zero: empty.
using Reports = std::array<std::atomic<uint64_t>, 64>;

std::atomic<Reports*> own{nullptr};

// Null if no memory can be mapped.
Reports* own_reports() {
  Reports* known = own.load(std::memory_order_acquire);
  if (known) return known;
  void* const made =
      ::mmap(nullptr, sizeof(Reports), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (made == MAP_FAILED) return nullptr;
  if (own.compare_exchange_strong(known, static_cast<Reports*>(made))) {
    return static_cast<Reports*>(made);
  }
  ::munmap(made, sizeof(Reports));  // another thread was first
  return known;
}

// Exists before the first child does, so that the parent learns what the child has reported.
[[maybe_unused]] const int registered =
    ::pthread_atfork([] { (void)own_reports(); }, nullptr, nullptr);

uint64_t key_of(const std::string& text) {
  struct stat where {};
  (void)::fstat(STDERR_FILENO, &where);
  const std::string all =
      text + '\n' + std::to_string(where.st_dev) + ':' + std::to_string(where.st_ino);
  return std::max<uint64_t>(std::hash<std::string>()(all), 1);
}

bool contains(const Reports* reports, uint64_t key) {
  return reports && std::any_of(reports->begin(), reports->end(),
                                [key](const auto& known) { return known.load() == key; });
}

}  // namespace
}  // namespace rcuda

// Each of our libraries in a process has its own list, and looks into those of the others.
extern "C" __attribute__((visibility("default"))) const void* rcuda_reports() {
  return rcuda::own.load(std::memory_order_acquire);
}

namespace rcuda {
namespace {

bool reported_elsewhere(uint64_t key) {
  for (const char* name : {"libcuda.so.1", "libnvidia-ml.so.1"}) {
    void* const library = ::dlopen(name, RTLD_LAZY | RTLD_NOLOAD);
    if (!library) continue;
    using List = const void*();
    auto* const list = reinterpret_cast<List*>(::dlsym(library, "rcuda_reports"));
    const bool known = list && contains(static_cast<const Reports*>(list()), key);
    ::dlclose(library);
    if (known) return true;
  }
  return false;
}

}  // namespace

bool first_report(const std::string& text) {
  const uint64_t key = key_of(text);
  Reports* const reports = own_reports();
  if (!reports) return true;
  if (reported_elsewhere(key)) return false;
  for (auto& slot : *reports) {
    uint64_t known = 0;
    if (slot.compare_exchange_strong(known, key)) return true;
    if (known == key) return false;
  }
  return true;  // there are more texts than slots
}

}  // namespace rcuda
