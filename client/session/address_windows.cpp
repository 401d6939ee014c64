#include "client/session/address_windows.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

#include <sys/mman.h>

#include "common/base/pages.h"
#include "common/base/units.h"
#include "common/wire/address_ranges.h"

namespace rcuda::client {
namespace {

// The most windows in a Welcome: the base, which the worker's driver uses before the session
// begins, and the session's own window.
constexpr size_t kMostWindows = 2;

bool contains(uint64_t base, uint64_t size, uint64_t address, uint64_t bytes) {
  return address >= base && address - base < size && bytes <= size - (address - base);
}

bool overlap(uint64_t base, uint64_t size, uint64_t address, uint64_t bytes) {
  return base < address ? address - base < size : base - address < bytes;
}

bool is_for_devices(const wire::AddressWindow& window) {
  const auto inside = [&](const AddressRange& span) {
    return contains(span.begin, span.end - span.begin, window.base, window.bytes);
  };
  return inside(wire::kBases) ||
         std::any_of(std::begin(wire::kWindowRanges), std::end(wire::kWindowRanges), inside);
}

std::string text_of(const wire::AddressWindow& window) {
  char text[64];
  std::snprintf(text, sizeof text, "0x%llx (%s)", static_cast<unsigned long long>(window.base),
                exact_bytes_text(window.bytes).c_str());
  return text;
}

Status check(const std::vector<wire::AddressWindow>& windows,
             const std::vector<wire::AddressWindow>& taken) {
  if (windows.empty() || windows.size() > kMostWindows) {
    return Status(Code::kProtocol, "the worker announced " + std::to_string(windows.size()) +
                                       " windows of device addresses; 1 or 2 are valid");
  }
  for (const wire::AddressWindow& window : windows) {
    if (window.bytes == 0 || window.base % page_bytes() != 0 || window.bytes % page_bytes() != 0 ||
        !is_for_devices(window)) {
      return Status(Code::kProtocol, "the worker's window of addresses at " + text_of(window) +
                                         " does not consist of whole pages in the "
                                         "ranges for device memory");
    }
    for (const wire::AddressWindow& used : taken) {
      if (overlap(used.base, used.bytes, window.base, window.bytes)) {
        return Status(Code::kProtocol, "the worker's window of addresses at " + text_of(window) +
                                           " overlaps " + text_of(used) +
                                           ", which this program reported as in use");
      }
    }
  }
  return {};
}

// Maps the pages if all of them are free. Otherwise returns false and sets errno.
bool map_free(uint64_t address, uint64_t bytes, int access) {
  void* const wanted = reinterpret_cast<void*>(address);
  void* const got =
      ::mmap(wanted, bytes, access,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
  if (got == wanted) return true;
  if (got == MAP_FAILED) return false;
  ::munmap(got, bytes);  // kernels before 4.17 treat the address as a hint
  errno = EEXIST;
  return false;
}

// Replaces pages of an existing reservation by new pages of zeros.
bool replace(uint64_t address, size_t bytes, int access) {
  void* const wanted = reinterpret_cast<void*>(address);
  return ::mmap(wanted, bytes, access, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
                0) == wanted;
}

}  // namespace

AddressWindows::AddressWindows(const std::vector<wire::AddressWindow>& windows) {
  for (const wire::AddressWindow& window : windows) {
    windows_.push_back({window.base, window.bytes, false});
  }
}

AddressWindows::~AddressWindows() {
  for (const Window& window : windows_) {
    if (window.is_reserved) ::munmap(reinterpret_cast<void*>(window.base), window.bytes);
  }
  for (const auto& [address, bytes] : opened_) ::munmap(reinterpret_cast<void*>(address), bytes);
}

Status AddressWindows::reserve(const std::vector<wire::AddressWindow>& windows,
                               const std::vector<wire::AddressWindow>& taken) {
  RCUDA_RETURN_IF_ERROR(check(windows, taken));
  for (const wire::AddressWindow& window : windows) {
    const bool is_reserved = map_free(window.base, window.bytes, PROT_NONE);
    const int error = errno;
    // ENOMEM means that the addresses are free, but a limit prevents the reservation.
    if (is_reserved || error == ENOMEM) {
      windows_.push_back({window.base, window.bytes, is_reserved});
      continue;
    }
    for (const Window& made : windows_) {
      if (made.is_reserved) ::munmap(reinterpret_cast<void*>(made.base), made.bytes);
    }
    windows_.clear();
    return Status(Code::kUnavailable,
                  "the device addresses at " + text_of(window) +
                      " cannot be reserved in this program (" + std::strerror(error) +
                      "): something else is mapped there; start the program again");
  }
  return {};
}

bool AddressWindows::are_reserved() const {
  return std::all_of(windows_.begin(), windows_.end(),
                     [](const Window& window) { return window.is_reserved; });
}

const AddressWindows::Window* AddressWindows::find(uint64_t address, uint64_t bytes) const {
  for (const Window& window : windows_) {
    if (contains(window.base, window.bytes, address, std::max<uint64_t>(bytes, 1))) return &window;
  }
  return nullptr;
}

bool AddressWindows::owns(uint64_t address, uint64_t bytes) const {
  return find(address, bytes) != nullptr;
}

bool AddressWindows::open(uint64_t address, size_t bytes) {
  const Window* const window = find(address, bytes);
  if (!window || bytes == 0 || address % page_bytes() != 0 || bytes % page_bytes() != 0) {
    return false;
  }
  if (window->is_reserved) return replace(address, bytes, PROT_READ | PROT_WRITE);
  return open_unreserved(address, bytes);
}

bool AddressWindows::open_unreserved(uint64_t address, size_t bytes) {
  MutexLock lock(mutex_);
  if (map_free(address, bytes, PROT_READ | PROT_WRITE)) {
    opened_[address] = bytes;
    return true;
  }
  const auto after = opened_.upper_bound(address);
  if (after == opened_.begin()) return false;
  const auto& [begin, size] = *std::prev(after);
  return contains(begin, size, address, bytes) && replace(address, bytes, PROT_READ | PROT_WRITE);
}

void AddressWindows::close(uint64_t address, size_t bytes) {
  const Window* const window = find(address, bytes);
  if (!window) return;
  if (window->is_reserved) {
    (void)replace(address, bytes, PROT_NONE);
    return;
  }
  MutexLock lock(mutex_);
  if (const auto found = opened_.find(address); found != opened_.end() && found->second == bytes) {
    ::munmap(reinterpret_cast<void*>(address), bytes);
    opened_.erase(found);
  }
}

}  // namespace rcuda::client
