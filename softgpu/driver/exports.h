// Exports: memory and events that this process offers to other processes of its user by IPC handle.
//
// A handle holds a random number that names the exporting process, and a secret key. The importer
// requests the memory file and its description from that process (local_lookup.h). The process
// sends them only for a valid key. (Rejected: opening the file through /proc. A handle could name
// any process and descriptor, and files of a process that is not dumpable cannot be opened.) An
// export ends with its object, and with the process.
//
// Any thread. Blocking: fetch(), for at most a second. Errors: kNotFound if the export does not
// exist or has ended; otherwise this process lacks a resource, which the message names.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "common/base/status.h"
#include "softgpu/driver/local_lookup.h"

namespace softgpu::driver {

enum class ExportKind : uint32_t { kMemory = 1, kEvent = 2 };

struct ExportHandle {
  uint64_t magic = 0;
  ExportKind kind{};
  uint32_t reserved = 0;
  LookupKey process{};
  LookupKey key{};

  bool is_valid(ExportKind expected) const;
  bool is_of_this_process() const;
};
static_assert(sizeof(ExportHandle) == 48);

using Export = LookupServer::Item;
// nullopt once the object has ended.
using FindExport = std::function<std::optional<Export>()>;

// `object`: from next_memory_id(). The same object gets the same handle.
rcuda::Result<ExportHandle> offer(ExportKind kind, uint64_t object, FindExport find);
rcuda::Result<LookupResult> fetch(const ExportHandle& handle);

}  // namespace softgpu::driver
