// LibraryMeter: books the variables of libraries in every context of the session.
//
// A library belongs to no context. A driver loads it into a context at its first use there, at the
// latest by a launch, and no call reports that. So a library counts in each context of the session
// from its load on, as if the driver loaded it eagerly. (Rejected: a check at each launch whether
// the context already has the kernel's library.)
//
// Executor thread only. Only MemoryMeter::take() blocks.
#pragma once

#include <cstdint>
#include <functional>
#include <unordered_map>
#include <vector>

#include <cuda.h>

#include "common/base/status.h"
#include "server/executor/metering/memory_meter.h"

namespace rcuda::server {

class LibraryMeter {
 public:
  // Begins with one context for each device, its primary context.
  LibraryMeter(MemoryMeter& meter, const std::vector<SessionDevice>& devices);

  // The bytes that a library takes in one context of a device, by device.
  using Sizes = std::unordered_map<CUdevice, uint64_t>;
  // Returns the bytes on each device of the session. Errors are those of `measure_on`.
  Result<Sizes> measure(const std::function<Result<uint64_t>(CUdevice)>& measure_on) const;

  // Returns false and books nothing if the variables do not fit into all contexts.
  bool book(const Sizes& sizes);
  void give(const Sizes& sizes);
  void give_back(const Sizes& sizes);  // after a failed load: the peak does not include the bytes
  // Assigns booked sizes to the library.
  void put(CUlibrary library, Sizes sizes) { libraries_[library] = std::move(sizes); }
  Sizes remove(CUlibrary library);

  // Adds a context that the program has created. Returns false if the libraries do not fit into it.
  bool add(CUcontext context, CUdevice device);
  // Removes a context. Primary contexts stay.
  void end(CUcontext context);

 private:
  uint64_t bytes_on(CUdevice device) const;

  MemoryMeter& meter_;
  std::unordered_map<CUdevice, uint64_t> contexts_;  // number by device, with the primary context
  std::unordered_map<CUcontext, CUdevice> made_;     // contexts that the program has created
  std::unordered_map<CUlibrary, Sizes> libraries_;
};

}  // namespace rcuda::server
