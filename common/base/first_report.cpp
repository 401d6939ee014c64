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

// The keys of the reported texts, in memory that a process shares with its children. 0: a free
// entry.
using Reports = std::array<std::atomic<uint64_t>, 64>;

std::atomic<Reports*> own{nullptr};

// Returns null if no memory can be mapped.
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

// Maps the list before the first fork(), so that parent and child share it.
[[maybe_unused]] const int registered =
    ::pthread_atfork([] { (void)own_reports(); }, nullptr, nullptr);

uint64_t key_of(const std::string& text) {
  struct stat where {};
  (void)::fstat(STDERR_FILENO, &where);
  const std::string all =
      text + '\n' + std::to_string(where.st_dev) + ':' + std::to_string(where.st_ino);
  return std::max<uint64_t>(std::hash<std::string>()(all), 1);
}

// Adds the key, and returns false if the list has it already. Returns true for every new key if the
// list is full, so such a text may be reported more than once.
bool add(Reports* reports, uint64_t key) {
  for (auto& slot : *reports) {
    uint64_t known = 0;
    if (slot.compare_exchange_strong(known, key)) return true;
    if (known == key) return false;
  }
  return true;
}

}  // namespace
}  // namespace rcuda

// Each rcuda library in a process has its own list, and also adds its texts to the lists of the
// other rcuda libraries. Otherwise a parent could report a text again that a child of fork() has
// reported: the two share only the lists that the parent made, not the list of a library that only
// the child has loaded.
extern "C" __attribute__((visibility("default"))) void* rcuda_reports() {
  return rcuda::own.load(std::memory_order_acquire);
}

namespace rcuda {
namespace {

// Returns false if the list of another library has the key already.
bool add_elsewhere(const Reports* here, uint64_t key) {
  bool is_first = true;
  for (const char* name : {"libcuda.so.1", "libnvidia-ml.so.1"}) {
    void* const library = ::dlopen(name, RTLD_LAZY | RTLD_NOLOAD);
    if (!library) continue;
    using List = void*();
    auto* const list = reinterpret_cast<List*>(::dlsym(library, "rcuda_reports"));
    auto* const reports = list ? static_cast<Reports*>(list()) : nullptr;
    if (reports && reports != here && !add(reports, key)) is_first = false;
    ::dlclose(library);
  }
  return is_first;
}

}  // namespace

bool first_report(const std::string& text) {
  const uint64_t key = key_of(text);
  Reports* const reports = own_reports();
  if (!reports) return true;
  const bool is_first_here = add(reports, key);
  return add_elsewhere(reports, key) && is_first_here;
}

}  // namespace rcuda
