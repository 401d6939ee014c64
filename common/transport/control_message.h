// The messages of ControlChannel (control_channel.h).
#pragma once

#include <cstdint>

namespace rcuda::transport {

// Received from the peer: no field can be trusted.
struct ControlMessage {
  enum Kind : uint32_t {
    kHeartbeat = 1,
    kAnnounce = 2,
    kRetire = 3,
    kFarewell = 4,
    kRetired = 5,  // verbs: the answer to kRetire
    kGivenUp = 6,  // a farewell to a silent peer
  };
  uint32_t kind = 0;
  uint32_t has_fd = 0;  // kAnnounce: one descriptor travels with this message
  uint64_t region = 0;  // kAnnounce, kRetire, kRetired
  // kAnnounce: the region's size. kGivenUp: the limit of silence in milliseconds. kHeartbeat: 1 if
  // the sender may be silent (Link::announce_silence).
  uint64_t bytes = 0;
  // kAnnounce: the region's address (verbs), or its offset in the backing file (shm).
  uint64_t address = 0;
  uint64_t key = 0;  // kAnnounce; verbs: rkey
};
static_assert(sizeof(ControlMessage) == 40);

}  // namespace rcuda::transport
