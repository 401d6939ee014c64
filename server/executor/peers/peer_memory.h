// PeerMemory: checks that this worker's half of a peer copy uses device memory of the program.
//
// Executor thread only. Nothing blocks.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "api/driver_table.h"
#include "common/base/status.h"
#include "p2p/engine/engine.h"
#include "server/executor/streams/work_count.h"

namespace rcuda::server {

class PeerMemory {
 public:
  // Both outlive this object.
  PeerMemory(const api::DriverTable& driver, const WorkCount& work)
      : driver_(driver), work_(work) {}

  // kInvalidArgument if the first or the last byte is not device memory. The bytes between them are
  // not checked: they belong to one allocation of the program, or several.
  Status check(const p2p::Shape& memory);

 private:
  struct Range {
    uint64_t first = 1, last = 0;  // addresses; initially an empty range
  };

  bool is_device_memory(uint64_t address) const;

  const api::DriverTable& driver_;
  const WorkCount& work_;
  // The checked ranges are valid while only peer copies run, because another command may free the
  // memory.
  uint64_t at_ = 0;  // WorkCount::without_holds() when the ranges were checked
  std::array<Range, 4> checked_{};
  size_t next_ = 0;
};

}  // namespace rcuda::server
