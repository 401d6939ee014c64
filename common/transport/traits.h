// What a medium can do, as reported by its Links and by the table of media (media.h). Code outside
// the media's own folders checks traits, never names. A trait holds for every Link of the medium,
// for its whole life. Plain values; any thread.
#pragma once

#include <cstdint>

namespace rcuda::transport {

// Where the peer may be. The reach also decides which kind of socket a Link starts from.
enum class Reach : uint8_t {
  kThisMachine,  // a process of the same machine, with the same clock; a Unix socket
  kNetwork,      // any machine, this one included; a TCP socket
};

struct MediumTraits {
  // Used in settings ("RCUDA_TRANSPORT=tcp"), in messages and on the wire. Letters, digits and '-'.
  const char* name = "";
  Reach reach = Reach::kNetwork;
  // map() returns the peer's own pages if the region has a backing, so both processes can use the
  // same memory. If false, map() returns nullptr, and shared data must be transferred.
  bool shares_pages = false;
  // Threads of the Link copy every byte at both ends, through sockets. A put that is sent alone
  // costs a system call at each end, which takes longer than moving some ten thousand bytes. A
  // spinning thread may occupy the core that moves the bytes. The threads touch a transfer's local
  // memory until the transfer ends.
  bool copies_by_cpu = false;
  // put_region() works: small writes into regions are ordered as puts.
  bool has_region_puts = false;
  // write_in_order() works.
  bool orders_writes = false;
  // write_with_immediate() works: the peer is notified of a write's arrival.
  bool has_immediates = false;
  // An adapter moves the bytes of memory that is registered with it. expose_device() works: it
  // registers device memory, if the platform allows it, once for all transfers. loop_back() proves
  // that the adapter reaches this memory. adapter() names the adapter.
  bool has_adapter = false;
  // Data leaves the machine without the encryption of the session's sockets.
  bool moves_in_clear = false;
};

}  // namespace rcuda::transport
