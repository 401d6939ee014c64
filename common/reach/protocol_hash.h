// The hash that client and server compare first, so that no message of a session is misread
// (docs/architecture.md, "Different builds").
//
// Threads: any. Nothing blocks.
#pragma once

#include <cstdint>

namespace rcuda::wire {

// A hash over the layouts of the handshake's messages (message.h), the constants, enumerations and
// structs of the headers in api/gen/struct_layouts.py, and samples of the functions by which both
// sides compute words, digests and labels of keys. It does not cover comments and texts for users.
uint64_t protocol_hash();

}  // namespace rcuda::wire
