// The work of a session, as counters. To add a counter, add it to Counter and kWorkNames: the code
// that passes counters from the worker to the metrics (ledger pages, messages, the audit) handles
// every counter of the list. The total of several sessions is the sum of each counter, except that
// kPeakMemory is the largest peak.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

namespace rcuda::wire {

enum class Counter : size_t {
  kCommands,        // commands that the worker executed
  kFailedCommands,  // of these, with an error other than CUDA_ERROR_NOT_READY
  kLaunches,        // of kernels, without those of graphs
  kGraphLaunches,
  kCopies,         // without copies in graphs, like the bytes below
  kBytesToDevice,  // from the client's memory
  kBytesToHost,    // to the client's memory
  kBytesOnServer,  // between memories of this server's devices
  kBytesToServer,  // to another server's device
  kBytesFromServer,
  kPeakMemory,  // bytes: the most that the session held on one device (MemoryMeter)
  kPeerCopies,  // the first of the counters of successful copies to another server, one for each
                // pair of route and staging
};

// The names in the audit. Counters of copies to another server are "peer_copies_", the route, "_"
// and the staging (p2p/plan/plan.h).
inline constexpr std::array kWorkNames{
    "commands",
    "failed_commands",
    "launches",
    "graph_launches",
    "copies",
    "bytes_to_device",
    "bytes_to_host",
    "bytes_on_server",
    "bytes_to_server",
    "bytes_from_server",
    "peak_memory",
    "peer_copies_shm_host",
    "peer_copies_tcp_host",
    "peer_copies_verbs_host",
    "peer_copies_verbs_device",
    "peer_copies_verbs_registered",
    "peer_copies_ipc_mapped",
    "peer_copies_other_other",
};
inline constexpr std::string_view kPeerCopiesName = "peer_copies_";

// The counter of copies over this route with this staging; the last counter if the pair has none.
inline Counter peer_copies(std::string_view route, std::string_view staging) {
  const std::string name = std::string(kPeerCopiesName).append(route).append("_").append(staging);
  const auto found = std::find(kWorkNames.begin(), kWorkNames.end() - 1, name);
  return static_cast<Counter>(found - kWorkNames.begin());
}

struct Work {
  std::array<uint64_t, kWorkNames.size()> counts{};

  uint64_t& operator[](Counter counter) { return counts[static_cast<size_t>(counter)]; }
  uint64_t operator[](Counter counter) const { return counts[static_cast<size_t>(counter)]; }
  void copied(Counter direction, uint64_t bytes) {
    ++(*this)[Counter::kCopies];
    (*this)[direction] += bytes;
  }
  void held(uint64_t bytes_on_a_device) {
    uint64_t& peak = (*this)[Counter::kPeakMemory];
    peak = std::max(peak, bytes_on_a_device);
  }
  // Saturates: a worker's numbers are not trusted, and a sum must not decrease.
  Work& operator+=(const Work& other) {
    held(other[Counter::kPeakMemory]);
    for (size_t i = 0; i < counts.size(); ++i) {
      if (i == static_cast<size_t>(Counter::kPeakMemory)) continue;
      if (__builtin_add_overflow(counts[i], other.counts[i], &counts[i])) {
        counts[i] = std::numeric_limits<uint64_t>::max();
      }
    }
    return *this;
  }
  uint64_t copied_bytes() const {
    uint64_t bytes = 0;
    for (Counter counter = Counter::kBytesToDevice; counter <= Counter::kBytesFromServer;
         counter = static_cast<Counter>(static_cast<size_t>(counter) + 1)) {
      bytes += (*this)[counter];
    }
    return bytes;
  }
};
static_assert(std::string_view(kWorkNames[static_cast<size_t>(Counter::kPeerCopies)])
                  .starts_with(kPeerCopiesName));

}  // namespace rcuda::wire
