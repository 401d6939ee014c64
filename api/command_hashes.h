// Hashes that client and server exchange in the handshake, so that different builds use the
// commands that both have (docs/architecture.md, "Different builds").
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace rcuda::api {

inline constexpr uint32_t kMaxOpcodes = 0x1000;

// By opcode: a hash of the properties that must be equal in client and worker, such as the types of
// the command's parameters and the layout of CUDA's structs in it. 0: this build does not have the
// command. At most kMaxOpcodes entries.
std::span<const uint32_t> command_hashes();

// The opcodes, ascending, of commands of `theirs` that are missing or different in `ours`.
std::vector<uint32_t> lacking_commands(std::span<const uint32_t> theirs,
                                       std::span<const uint32_t> ours);

namespace internal {  // generated
extern const uint32_t kHashes[];
extern const size_t kHashCount;
}  // namespace internal

}  // namespace rcuda::api
