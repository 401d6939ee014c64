// What a medium can do, as its Links and the table of media (media.h) tell. Code outside of the
// media's own folders asks for these and never for a name. A trait says what holds for every Link
// of the medium, for as long as it stands. Plain values; any thread.
#pragma once

#include <cstdint>

namespace rcuda::transport {

// Where the peer may be, and with that, what socket a Link starts from.
enum class Reach : uint8_t {
  kThisMachine,  // a process of the same machine, and of the same clock; a Unix socket
  kNetwork,      // any machine, this one too; a TCP socket
};

struct MediumTraits {
  // In settings ("RCUDA_TRANSPORT=tcp"), in messages and on the wire; of letters, digits and '-'.
  const char* name = "";
  Reach reach = Reach::kNetwork;
  // map() gives the peer's own pages where a region has a backing, so that memory of one process
  // can be memory of the other. Where it is false, map() gives nullptr, and what both sides are to
  // see has to be moved.
  bool shares_pages = false;
  // Threads of the Link copy every byte at both ends, through sockets. A put on its own costs a
  // system call at each end, more than some ten thousand bytes; a thread that spins may take the
  // core that moves the bytes; and the threads touch local memory of a transfer while it lasts.
  bool copies_by_cpu = false;
  // write_with_immediate() works: the peer learns of the arrival from the write itself.
  bool has_immediates = false;
  // An adapter moves the bytes, of memory that is registered with it. expose_device() registers
  // memory once for all transfers, device memory too where the platform allows it; loop_back()
  // proves that it does; adapter() names it.
  bool has_adapter = false;
};

}  // namespace rcuda::transport
