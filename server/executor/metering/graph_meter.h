// GraphMeter: books the memory that a driver holds for the allocation nodes of graphs.
//
// A driver reserves this memory when an executable graph is uploaded, at the latest by its first
// launch. It keeps the memory after the launch, until the memory is trimmed or the executable is
// destroyed. So before a launch that would reserve memory, prepare() uploads the executable and
// books the growth. The upload takes a further place in the stream's queue, which the client does
// not count, so only executables with allocation nodes are uploaded. (An update of an executable
// cannot change these nodes.)
//
// Executor thread only. Blocking: as the driver's own upload and trim. Errors: if the driver does
// not report a device's size, the booking stays as it is.
#pragma once

#include <cstdint>
#include <map>
#include <unordered_set>
#include <vector>

#include <cuda.h>

#include "api/driver_table.h"
#include "server/executor/metering/memory_meter.h"

namespace rcuda::server {

class GraphMeter {
 public:
  // All outlive this object.
  GraphMeter(const api::DriverTable& driver, MemoryMeter& meter,
             const std::vector<SessionDevice>& devices);

  // To be called before a launch. Returns CUDA_ERROR_OUT_OF_MEMORY if the graph's memory does not
  // fit.
  CUresult prepare(CUgraphExec executable, CUstream stream);
  // Books the memory that the driver has reserved since the last booking. Returns false if it does
  // not fit; it is booked nevertheless.
  bool book_growth();
  // To be called after the executable was made from the graph.
  void made(CUgraphExec executable, CUgraph graph);
  // Whether the executable may have allocation nodes.
  bool has_memory(CUgraphExec executable) const { return !without_memory_.contains(executable); }
  // To be called when the next launch may have to reserve the executable's memory again.
  void changed(CUgraphExec executable) { prepared_.erase(executable); }
  void destroyed(CUgraphExec executable);
  // Releases the booking of memory that the driver has released.
  void refresh();
  // Makes the driver release memory that no graph uses at present, then calls refresh().
  void trim();
  // To be called after the driver has trimmed the memory: executables may have lost theirs.
  void trimmed() { prepared_.clear(); }

 private:
  bool try_book();  // false: the memory of a device does not fit, and is not booked
  bool book();      // false: the memory of a device does not fit, and is booked nevertheless
  bool allocates(CUgraph graph) const;
  uint64_t size_of(CUdevice device, uint64_t otherwise) const;

  const api::DriverTable& driver_;
  MemoryMeter& meter_;
  std::map<CUdevice, uint64_t> booked_;
  std::unordered_set<CUgraphExec> prepared_;        // their memory is reserved and booked
  std::unordered_set<CUgraphExec> without_memory_;  // without allocation nodes
};

}  // namespace rcuda::server
