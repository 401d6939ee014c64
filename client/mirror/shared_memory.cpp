#include "client/mirror/shared_memory.h"

#include <chrono>
#include <thread>

#include <sys/mman.h>

#include "common/base/log.h"
#include "common/base/memory_file.h"
#include "common/base/units.h"

namespace rcuda::client {

void* map_shared(const char* name, void* wanted, size_t bytes, bool workers_map,
                 UniqueFd* backing) {
  const bool anonymous = !workers_map && !may_make_files_of(bytes);
  if (!anonymous) {
    *backing = make_memory_file(name, bytes);
    if (!*backing) return nullptr;
  }
  const int flags =
      MAP_SHARED | (anonymous ? MAP_ANONYMOUS : 0) | (wanted != nullptr ? MAP_FIXED_NOREPLACE : 0);
  void* const memory = ::mmap(wanted, bytes, PROT_READ | PROT_WRITE, flags, backing->get(), 0);
  if (memory != MAP_FAILED && (wanted == nullptr || memory == wanted)) return memory;
  if (memory != MAP_FAILED) ::munmap(memory, bytes);  // an old kernel treats the address as a hint
  backing->reset();
  return nullptr;
}

bool is_usable(const UniqueFd& backing, size_t bytes) {
  if (!backing) return true;
  // How long the client waits for the worker to set the file's size. The worker may answer a
  // command before it has received the file.
  constexpr auto kPatience = std::chrono::seconds(10);
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!has_size(backing.get(), bytes) && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  if (has_size(backing.get(), bytes)) return true;
  RCUDA_ERROR(
      "a shared memory file of %s is not usable: the server did not set the file's size within "
      "10 s, and this program may not make files of this size: raise the program's limit of file "
      "size (ulimit -f)",
      exact_bytes_text(bytes).c_str());
  return false;
}

}  // namespace rcuda::client
