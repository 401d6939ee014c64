// A command as text, for logs and traces: "cuMemsetD8Async(dstDevice=0x600000000000, uc=7, N=16,
// hStream=#3)". Objects are printed by id, what a command creates as "phGraph->#5".
//
// Reads any bytes safely; says "malformed" where they are no such command. Any thread; allocates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace rcuda::api {

// `body` is what follows the CommandHeader, on an 8-byte boundary.
std::string print_command(uint16_t opcode, std::span<const std::byte> body);

}  // namespace rcuda::api
