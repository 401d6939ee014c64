// The messages of the control socket of a TCP Link:
//
//   PutHeader; payload of `bytes`
//
// The payload of a kRegionPut begins with a RegionPlace, and the rest goes into that region. That of
// a kEndOfWrite is an EndOfWrite: the receiver takes nothing behind it until the write is here,
// whose bytes come by the sockets of the transfers (bulk_stream.h).
#pragma once

#include <cstdint>

namespace rcuda::transport {

// Stored in the low bits of PutHeader::place: offsets are multiples of eight.
enum PutKind : uint32_t {
  kPut = 0,
  kPutAndWake = 1,
  kHeartbeat = 2,
  kFarewell = 3,
  kRegionPut = 4,
  kEndOfWrite = 5,
  kGivenUp = 6,  // a farewell to a silent peer; `bytes`: the limit in milliseconds
};

struct PutHeader {
  uint32_t bytes = 0;
  uint32_t place = 0;  // offset in the window | PutKind
};
static_assert(sizeof(PutHeader) == 8);

struct RegionPlace {
  uint64_t region = 0;
  uint64_t offset = 0;
};
static_assert(sizeof(RegionPlace) == 16);

// Of a write in order.
struct EndOfWrite {
  uint64_t bytes = 0;
  uint32_t number = 0;
  uint32_t unused = 0;
};
static_assert(sizeof(EndOfWrite) == 16);

}  // namespace rcuda::transport
