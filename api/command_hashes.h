// What builds tell each other in the handshake, so that a client and a server of different builds
// use what both know (docs/architecture.md, "Different builds").
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace rcuda::api {

inline constexpr uint32_t kMaxOpcodes = 0x1000;

// By opcode: a hash of all that client and worker must agree on to use the command, such as the
// types of its parameters and the layout of CUDA's structs in it. 0: this build has no such
// command. At most kMaxOpcodes.
std::span<const uint32_t> command_hashes();

// The opcodes, ascending, of commands of `theirs` that are missing in `ours` or differ there.
std::vector<uint32_t> lacking_commands(std::span<const uint32_t> theirs,
                                       std::span<const uint32_t> ours);

namespace internal {  // generated
extern const uint32_t kHashes[];
extern const size_t kHashCount;
}  // namespace internal

}  // namespace rcuda::api
