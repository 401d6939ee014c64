// Formats a command for logs and traces: "cuMemsetD8Async(dstDevice=0x600000000000, uc=7, N=16,
// hStream=#3)". Objects are printed by id; an object that the command creates as "phGraph->#5".
//
// Reads any bytes safely; prints "malformed" if they are not a body of this command. Any thread;
// allocates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace rcuda::api {

// `body` is the part after the CommandHeader, on an 8-byte boundary.
std::string print_command(uint16_t opcode, std::span<const std::byte> body);

}  // namespace rcuda::api
