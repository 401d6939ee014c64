// ExportedName: replaces the driver's handle or descriptor of memory or an event that a client
// exports (docs/isolation.md).
//
// The driver's handle never leaves the server. The exporting worker keeps it under the name
// (server/names/exported_names.h). Another worker receives the handle only if that worker serves
// the same user on the same client host. So a process can import the exports of another process of
// its user if the workers of both run on one server host. The media of the two sessions do not
// matter. A name is valid as long as the session that minted it.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>

namespace rcuda::wire {

enum class ExportKind : uint32_t {
  kAllocation = 1,   // of cuMemCreate
  kPool = 2,         // cuMemPoolExportToShareableHandle
  kPoolPointer = 3,  // cuMemPoolExportPointer
  kMemory = 4,       // cuIpcGetMemHandle
  kEvent = 5,        // cuIpcGetEventHandle
  kMovable = 6,      // cuIpcGetMemHandle, of memory that is exported by a descriptor
};

// A random number that cannot be guessed.
using ExportNumber = std::array<uint8_t, 16>;

struct ExportedName {
  static constexpr uint64_t kMagic = 0x31'65'6d'61'6e'70'78'65;  // "expname1"
  uint64_t magic;
  ExportKind kind;
  uint32_t port;        // of the server whose worker minted it
  ExportNumber worker;  // identifies that worker
  ExportNumber secret;
};
static_assert(sizeof(ExportedName) == 48);

// Handles of the driver that applications exchange as bytes: CUipcMemHandle, CUipcEventHandle and
// CUmemPoolPtrExportData. A name is at their beginning, with zeros after it.
using HandleBytes = std::array<std::byte, 64>;

inline HandleBytes to_handle(const ExportedName& name) {
  HandleBytes bytes{};
  std::memcpy(bytes.data(), &name, sizeof name);
  return bytes;
}

// Returns the name in a handle; nullopt if the bytes are not a name of this kind.
inline std::optional<ExportedName> name_in(const HandleBytes& bytes, ExportKind kind) {
  ExportedName name;
  std::memcpy(&name, bytes.data(), sizeof name);
  const bool rest_is_zero = std::all_of(bytes.begin() + sizeof name, bytes.end(),
                                        [](std::byte byte) { return byte == std::byte{}; });
  if (name.magic != ExportedName::kMagic || name.kind != kind || name.port > UINT16_MAX ||
      !rest_is_zero) {
    return std::nullopt;
  }
  return name;
}

}  // namespace rcuda::wire
