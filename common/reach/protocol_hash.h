// The hash that client and server compare first, so that no message of a session is misread
// (docs/architecture.md, "Different builds").
//
// Threads: any. Nothing blocks.
#pragma once

#include <cstdint>

namespace rcuda::wire {

// Returns a hash of everything on which both sides must agree:
//   - the layouts of the handshake's messages (message.h);
//   - the constants, enumerations and structs of the headers that api/gen/struct_layouts.py lists;
//   - samples of the functions that compute words, digests and labels of keys.
// The hash does not cover comments and texts for users.
uint64_t protocol_hash();

}  // namespace rcuda::wire
