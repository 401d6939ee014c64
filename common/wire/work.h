// What a session has done, as counters. A counter is a line of kWorkNames; what carries counters from
// the worker to the metrics (pages, messages, the audit) takes all of them as they come.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace rcuda::wire {

enum class Counter : size_t {
  kCommands,        // that the worker executed
  kFailedCommands,  // of these, with an error other than CUDA_ERROR_NOT_READY
  kLaunches,        // of kernels, without those of graphs
  kGraphLaunches,
  kCopies,          // without those of graphs, like the bytes below
  kBytesToDevice,   // from the client's memory
  kBytesToHost,     // to the client's memory
  kBytesOnServer,   // between memories of this server's devices
  kBytesToServer,   // to another server's device
  kBytesFromServer,
};

// As the audit names them.
inline constexpr std::array kWorkNames{
    "commands",        "failed_commands", "launches",        "graph_launches",  "copies",
    "bytes_to_device", "bytes_to_host",   "bytes_on_server", "bytes_to_server", "bytes_from_server"};

struct Work {
  std::array<uint64_t, kWorkNames.size()> counts{};

  uint64_t& operator[](Counter counter) { return counts[static_cast<size_t>(counter)]; }
  uint64_t operator[](Counter counter) const { return counts[static_cast<size_t>(counter)]; }
  void copied(Counter direction, uint64_t bytes) {
    ++(*this)[Counter::kCopies];
    (*this)[direction] += bytes;
  }
  // Stops at the largest number: what a worker says is not believed, and a sum must not fall.
  Work& operator+=(const Work& other) {
    for (size_t i = 0; i < counts.size(); ++i) {
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
static_assert(kWorkNames.size() == static_cast<size_t>(Counter::kBytesFromServer) + 1);

}  // namespace rcuda::wire
