// LibraryMeter: books the variables of libraries in every context of the session.
//
// A library belongs to no context. A driver loads it into a context when it is first used there, at
// the latest by a launch, and no call tells that. So a library counts in each context of the
// session from its load on, whether it is used there or not, as if the driver loaded it eagerly.
// (Rejected: to look at each launch whether its kernel's library is in the context already.)
//
// Executor thread only. Nothing blocks but MemoryMeter::take().
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
  // Has the primary contexts of the devices.
  LibraryMeter(MemoryMeter& meter, const std::vector<SessionDevice>& devices);

  // What a library takes in a context of a device, by device.
  using Sizes = std::unordered_map<CUdevice, uint64_t>;
  // The bytes on each device of the session. Errors are those of `measure`.
  Result<Sizes> measure(const std::function<Result<uint64_t>(CUdevice)>& measure_on) const;

  // False: the variables do not fit into all contexts, and nothing is booked.
  bool book(const Sizes& sizes);
  void give(const Sizes& sizes);
  void give_back(const Sizes& sizes);  // as MemoryMeter has it
  // What is booked belongs to the library from now on.
  void put(CUlibrary library, Sizes sizes) { libraries_[library] = std::move(sizes); }
  Sizes remove(CUlibrary library);

  // A context that the program has made. False: the libraries do not fit into it.
  bool add(CUcontext context, CUdevice device);
  // The end of a context. Primary contexts stay.
  void end(CUcontext context);

 private:
  uint64_t bytes_on(CUdevice device) const;

  MemoryMeter& meter_;
  std::unordered_map<CUdevice, uint64_t> contexts_;  // how many, the primary one among them
  std::unordered_map<CUcontext, CUdevice> made_;     // by the program
  std::unordered_map<CUlibrary, Sizes> libraries_;
};

}  // namespace rcuda::server
