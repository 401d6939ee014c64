// GraphMeter: books what a driver holds for the allocation nodes of graphs.
//
// A driver reserves that memory when an executable graph is uploaded, at the latest by its first
// launch. It keeps it when the graph has run, until it is trimmed or the executable is destroyed.
// So prepare() uploads an executable that has no memory yet before it is launched, and looks what
// that took. The upload takes a place of the stream's queue beside the launch, which the client
// does not count, so only an executable that has such nodes is uploaded. An update changes none of
// them.
//
// Executor thread only. Blocking: as the driver's own upload and trim. Errors: a device whose sizes
// the driver does not tell keeps what is booked for it.
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

  // To be called before a launch. CUDA_ERROR_OUT_OF_MEMORY: the graph's memory does not fit.
  CUresult prepare(CUgraphExec executable, CUstream stream);
  // To be called after the driver was asked to reserve memory. False: it does not fit; it is booked
  // nevertheless.
  bool book_growth();
  // The executable was made of the graph.
  void made(CUgraphExec executable, CUgraph graph);
  bool has_memory(CUgraphExec executable) const { return !without_memory_.contains(executable); }
  // The executable may need its memory again.
  void changed(CUgraphExec executable) { prepared_.erase(executable); }
  void destroyed(CUgraphExec executable);
  // Gives back what the driver has released.
  void refresh();
  // The same after the driver was asked to release what no graph uses at present.
  void trim();
  // Executables may have lost their memory.
  void trimmed() { prepared_.clear(); }

 private:
  bool try_book();  // false: something does not fit, and is not booked
  bool book();      // false: something does not fit, and is booked nevertheless
  bool allocates(CUgraph graph) const;
  uint64_t size_of(CUdevice device, uint64_t otherwise) const;

  const api::DriverTable& driver_;
  MemoryMeter& meter_;
  std::map<CUdevice, uint64_t> booked_;
  std::unordered_set<CUgraphExec> prepared_;
  std::unordered_set<CUgraphExec> without_memory_;  // no node of it allocates
};

}  // namespace rcuda::server
