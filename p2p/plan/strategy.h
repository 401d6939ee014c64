// The ways in which a copy between two workers can be made, and the published constants.
//
// A *strategy* says where a copy is staged and in which pieces. A *route* says how the pieces
// travel. A Plan is one choice of both. Pure values and functions; any thread.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/transport/traits.h"

namespace rcuda::p2p {

enum class Strategy : uint8_t {
  kV1,   // register both GPU ranges per copy, one GPUDirect transfer, no staging
  kV2a,  // one buffer in GPU memory, used one piece at a time
  kV2b,  // one buffer in pinned host memory, used one piece at a time
  kV3a,  // several buffers in GPU memory, pipelined, fixed number and size
  kV3b,  // several buffers in pinned host memory, pipelined, fixed number and size
  kV4a,  // as v3a, but number and size of the buffers depend on the copy size
  kV4b,  // as v3b, but number and size of the buffers depend on the copy size
  kIpc,  // one worker maps the other's GPU memory: a single device copy
};
inline constexpr std::array kStrategies{Strategy::kV1,  Strategy::kV2a, Strategy::kV2b,
                                        Strategy::kV3a, Strategy::kV3b, Strategy::kV4a,
                                        Strategy::kV4b, Strategy::kIpc};

// Every route except kIpc stands for one kind of medium, given by its traits. It has the name of
// the first medium of that kind.
enum class Route : uint8_t {
  kShm,    // shares_pages: both workers stage in one shared pinned buffer
  kTcp,    // copies_by_cpu: sockets between pinned buffers
  kVerbs,  // has_adapter: RDMA write between registered buffers (of host or GPU)
  kIpc,    // mapped GPU memory of the peer
};
inline constexpr std::array kRoutes{Route::kShm, Route::kTcp, Route::kVerbs, Route::kIpc};

// Where a strategy stages copies, if it does.
enum class Staging : uint8_t {
  kMapped,      // nowhere: the receiver maps the source
  kRegistered,  // nowhere: the adapter reads the source and writes the destination
  kDevice,      // in buffers of GPU memory
  kHost,        // in pinned host memory
};
constexpr bool has_buffers(Staging staging) {
  return staging == Staging::kDevice || staging == Staging::kHost;
}

const char* to_string(Strategy strategy);
const char* to_string(Route route);
std::optional<Strategy> parse_strategy(std::string_view name);
// The route of copies over a Link with these traits.
Route route_of(const transport::MediumTraits& traits);
Staging staging_of(Strategy strategy);
// The strategy that stages in host memory as `strategy` stages in GPU memory. It is used if
// GPUDirect does not work. For v1 it is v2b.
Strategy host_counterpart(Strategy strategy);

// The fallback strategy, which works for every copy over every Link.
inline constexpr Strategy kStandIn = Strategy::kV4b;

// At most `depth` chunks of `chunk_bytes` are between the begin of their copy-out and the end of
// their copy-in.
struct Chunking {
  uint64_t chunk_bytes = 0;
  uint32_t depth = 1;
  friend bool operator==(const Chunking&, const Chunking&) = default;
};

struct Plan {
  Strategy strategy = Strategy::kV2b;
  Route route = Route::kTcp;
  Chunking chunking;
  double predicted_us = 0;  // 0: legs not measured
  std::string reason;       // one line
};
// "v4b over shm, 4 x 1 MB, 310.2 us predicted: least of 61 candidates"
std::string to_string(const Plan& plan);
// "64 KB", "1 MB", "1.5 MB", "300 B"
std::string bytes_text(uint64_t bytes);
// Parses "65536", "64K", "1M" or "1G" (powers of 1024).
std::optional<uint64_t> parse_bytes(std::string_view text);

// --- The published constants (policy `paper`) ---------------------------------------------------

// The published hybrid uses v4a up to this size and v4b above it.
inline constexpr uint64_t kPaperHybridThresholdBytes = 200 * 1000;
// v2 and v3 are published with a fixed buffer; the sizes are ours.
inline constexpr Chunking kPaperV2{uint64_t{1} << 20, 1};
inline constexpr Chunking kPaperV3{uint64_t{512} << 10, 4};

// The number and size of the buffers that `strategy` uses for a copy of `bytes`.
Chunking paper_chunking(Strategy strategy, uint64_t bytes);
// The strategy that the hybrid uses for a copy of `bytes`.
Strategy paper_hybrid(uint64_t bytes);

}  // namespace rcuda::p2p
