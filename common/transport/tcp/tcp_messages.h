// The messages of the control socket of a TCP Link:
//
//   Greeting, with kTcpMagic
//   PutHeader; payload of `bytes`
//   ...
//
// The payload of a kAcknowledged is an Acknowledgement; only Links whose sockets outlive their
// connections send it (reconnects.h). The payload of a kRegionPut begins with a RegionPlace, and
// the rest goes into that region. The payload of a kEndOfWrite is an EndOfWrite, which names a
// write in order (Link::write_in_order()). The bytes of this write arrive over the transfer sockets
// (bulk_stream.h). The receiver processes no message after the kEndOfWrite until the write is
// complete. A transfer socket begins with a StreamHello, and its messages with a BulkHeader.
#pragma once

#include <cstdint>

namespace rcuda::transport {

inline constexpr uint64_t kTcpMagic = 0x3370637461647563;     // "cudatcp3"
inline constexpr uint64_t kStreamMagic = 0x336b6c6261647563;  // "cudablk3"

struct StreamHello {
  uint64_t magic = kStreamMagic;
  uint64_t index = 0;
};
static_assert(sizeof(StreamHello) == 16);

// The sender has received this many bytes of the stream `index` (reconnects.h).
struct Acknowledgement {
  uint32_t index = 0;
  uint32_t unused = 0;
  uint64_t received = 0;
};
static_assert(sizeof(Acknowledgement) == 16);

// The first message of each side on a connection that replaces a lost connection
// (resumable_socket.h).
inline constexpr uint64_t kResumeMagic = 0x3173657261647563;  // "cudares1"
struct ResumeHello {
  uint64_t magic = kResumeMagic;
  uint64_t received = 0;  // bytes of the stream
};
static_assert(sizeof(ResumeHello) == 16);

// Stored in the low bits of PutHeader::place: offsets are multiples of eight.
enum PutKind : uint32_t {
  kPut = 0,
  kPutAndWake = 1,
  kHeartbeat = 2,
  kFarewell = 3,
  kRegionPut = 4,
  kEndOfWrite = 5,
  kGivenUp = 6,  // a farewell to a silent peer; `bytes`: the limit in milliseconds
  kAcknowledged = 7,
};

// The offset of a kHeartbeat after which its sender may be silent (Link::announce_silence). Other
// heartbeats have the offset 0.
inline constexpr uint32_t kMayBeSilent = 8;

struct PutHeader {
  uint32_t bytes = 0;
  uint32_t place = 0;  // offset in the window, with a PutKind in the low bits
};
static_assert(sizeof(PutHeader) == 8);

struct RegionPlace {
  uint64_t region = 0;
  uint64_t offset = 0;
};
static_assert(sizeof(RegionPlace) == 16);

// The payload of a kEndOfWrite.
struct EndOfWrite {
  uint64_t bytes = 0;
  uint32_t number = 0;
  uint32_t unused = 0;
};
static_assert(sizeof(EndOfWrite) == 16);

struct BulkHeader {
  enum Kind : uint32_t { kWrite = 1, kRead = 2, kData = 3, kDone = 4, kWriteInOrder = 5 };
  uint32_t kind = 0;
  uint32_t status = 0;      // kDone: a Code
  uint64_t piece = 0;       // assigned by the requesting side, per stream
  uint64_t region = 0;      // not in kData, kDone
  uint64_t offset = 0;      // not in kData, kDone
  uint64_t bytes = 0;       // not in kDone
  uint32_t immediate = 0;   // kWrite: reported to the receiver with the piece, unless 0;
                            // kWriteInOrder: the write's number
  uint32_t after_puts = 0;  // the SentOrder count that the message waits for; not in kData, kDone
};
static_assert(sizeof(BulkHeader) == 48);

}  // namespace rcuda::transport
