// HostMeter: books the host memory that the worker page-locks for the program (server/quota).
// Executor thread only. Nothing blocks.
#pragma once

#include <cstdint>

namespace rcuda::server {

class HostMeter {
 public:
  virtual ~HostMeter() = default;
  // False: it does not fit, and nothing is booked.
  virtual bool take_host(uint64_t bytes) = 0;
  virtual void give_host(uint64_t bytes) = 0;
};

}  // namespace rcuda::server
