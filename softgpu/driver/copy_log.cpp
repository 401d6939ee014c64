#include "softgpu/driver/copy_log.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstring>

#include <fcntl.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/base/unique_fd.h"
#include "softgpu/driver/config.h"

namespace softgpu::driver {
namespace {

int open_log() {
  const char* path = configuration().copy_log.c_str();
  const int file = ::open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
  if (file < 0)
    RCUDA_WARN("SOFTGPU_COPY_LOG=%s cannot be opened, so copies are not logged: %s", path,
               std::strerror(errno));
  return file;
}

int64_t ns_of(std::chrono::steady_clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

}  // namespace

bool copies_are_logged() { return !configuration().copy_log.empty(); }

void log_copy(const char* engine, uint64_t device_address, size_t bytes,
              const CopyEngine::Slot& slot) {
  static const rcuda::UniqueFd file(open_log());
  if (!file) return;
  char line[128];
  const int length =
      std::snprintf(line, sizeof line, "%s %" PRIx64 " %zu %" PRId64 " %" PRId64 "\n", engine,
                    device_address, bytes, ns_of(slot.begin), ns_of(slot.done));
  (void)!::write(file.get(), line, static_cast<size_t>(length));
}

}  // namespace softgpu::driver
