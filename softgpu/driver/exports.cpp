#include "softgpu/driver/exports.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "common/base/log.h"

namespace softgpu::driver {
namespace {

using rcuda::Result;
using rcuda::Status;

constexpr uint64_t kMagic = 0x3175'7067'6370'6973;  // "sipcgpu1"
constexpr size_t kFewExports = 64;

struct Offered {
  ExportKind kind{};
  uint64_t object = 0;
  FindExport find;
};

struct Exports {
  std::mutex mutex;
  LookupKey process{};
  std::map<LookupKey, Offered> offered;
  std::map<uint64_t, LookupKey> by_object;
  size_t sweep_at = kFewExports;
  LookupServer server;
};

// Never destroyed: its thread may answer until the process ends.
Exports& exports() {
  static auto* instance = new Exports;
  return *instance;
}

std::string socket_of(const LookupKey& process) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string name = "softgpu-exports-";
  for (const uint8_t byte : process) {
    name += kDigits[byte >> 4];
    name += kDigits[byte & 15];
  }
  return name;
}

std::optional<Export> find_export(uint32_t kind, const LookupKey& key) {
  Exports& state = exports();
  std::lock_guard lock(state.mutex);
  const auto found = state.offered.find(key);
  if (found == state.offered.end() || static_cast<uint32_t>(found->second.kind) != kind) {
    return std::nullopt;
  }
  return found->second.find();
}

Status listen_locked(Exports& state) {
  if (state.server.started()) return {};
  const Result<LookupKey> process = make_lookup_key();
  if (!process) return process.status();
  state.process = *process;
  return state.server.start(socket_of(*process), "softgpu-exports", find_export);
}

// Drops the exports of objects that have ended. Runs when the number of exports has doubled since
// the last sweep.
void sweep_locked(Exports& state) {
  if (state.offered.size() < state.sweep_at) return;
  std::erase_if(state.offered, [&](const auto& entry) {
    if (entry.second.find()) return false;
    state.by_object.erase(entry.second.object);
    return true;
  });
  state.sweep_at = std::max(kFewExports, 2 * state.offered.size());
}

}  // namespace

bool ExportHandle::is_valid(ExportKind expected) const {
  return magic == kMagic && kind == expected && reserved == 0;
}

bool ExportHandle::is_of_this_process() const {
  Exports& state = exports();
  std::lock_guard lock(state.mutex);
  return state.server.started() && process == state.process;
}

Result<ExportHandle> offer(ExportKind kind, uint64_t object, FindExport find) {
  Exports& state = exports();
  std::lock_guard lock(state.mutex);
  if (const auto known = state.by_object.find(object); known != state.by_object.end()) {
    return ExportHandle{kMagic, kind, 0, state.process, known->second};
  }
  if (Status status = listen_locked(state); !status.ok()) return status;
  const Result<LookupKey> key = make_lookup_key();
  if (!key) return key.status();
  sweep_locked(state);
  state.offered[*key] = {kind, object, std::move(find)};
  state.by_object[object] = *key;
  return ExportHandle{kMagic, kind, 0, state.process, *key};
}

Result<LookupResult> fetch(const ExportHandle& handle) {
  Result<LookupResult> found =
      look_up(socket_of(handle.process), static_cast<uint32_t>(handle.kind), handle.key);
  if (!found) {
    RCUDA_WARN("cannot open an IPC handle: %s", found.status().message().c_str());
  } else if (!found->descriptor) {
    return Status(rcuda::Code::kNotFound, "the exporting process sent no file descriptor");
  }
  return found;
}

}  // namespace softgpu::driver
