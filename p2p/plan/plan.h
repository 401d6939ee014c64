// Plan: how a copy between two workers is made. The staging is the place where its chunks wait
// between the two GPUs, the route is the medium that carries them, and the chunking is their size
// and the number in flight. Pure values; any thread.
#pragma once

#include <cstdint>
#include <string>

#include "common/transport/traits.h"

namespace rcuda::p2p {

enum class Staging : uint8_t {
  kMapped,      // none: the receiver maps the source, and one device copy moves it
  kRegistered,  // none: the adapter reads the source and writes the destination (GPUDirect)
  kDevice,      // in buffers of GPU memory at both ends (GPUDirect)
  kHost,        // in page-locked host memory at both ends
};
// Whether a copy with this staging is cut into chunks. Without staging buffers the copy moves as a
// whole.
constexpr bool has_buffers(Staging staging) {
  return staging == Staging::kDevice || staging == Staging::kHost;
}

// The medium of the chunks. Each route except kIpc stands for all media with the same traits, and
// is named after the first of these media.
enum class Route : uint8_t {
  kShm,    // shares_pages: both workers stage in one shared buffer
  kTcp,    // copies_by_cpu: sockets between host buffers
  kVerbs,  // has_adapter: RDMA write between registered memory (of host or GPU)
  kIpc,    // mapped GPU memory of the peer
};

const char* to_string(Staging staging);
const char* to_string(Route route);
// Returns the route of copies over a Link with these traits.
Route route_of(const transport::MediumTraits& traits);

// The size of chunks, and the most chunks in flight. A chunk is in flight from the start of its
// copy-out to the end of its copy-in.
struct Chunking {
  uint64_t chunk_bytes = 0;
  uint32_t depth = 1;
  friend bool operator==(const Chunking&, const Chunking&) = default;
};
// For example "4 x 1 MiB": depth, then chunk size.
std::string to_string(const Chunking& chunking);

struct Plan {
  Staging staging = Staging::kHost;
  Route route = Route::kTcp;
  Chunking chunking;
  double predicted_us = 0;  // 0: legs not measured
  std::string reason;       // one line
};
// For example "host over shm, 4 x 1 MiB, 310us predicted: fastest of 61 candidates".
std::string to_string(const Plan& plan);

}  // namespace rcuda::p2p
