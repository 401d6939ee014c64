// Pageable memory in graphs.
//
// A graph's copy reads and writes host memory at every launch, when its turn has come, and the
// worker cannot reach pageable memory. So page-locked memory of this library's own stands in for
// it: the graph at the worker copies from or to that, and right before or after has a callback of
// this process move the bytes (server/executor/graphs/graph_copies.h). A stand-in belongs to the
// graphs, and what was made of them, that the worker uses it in; it ends with the last of those.
// Threads: any. Blocking: a round trip for each.
#pragma once

#include <cstddef>
#include <cstdint>

#include <cuda.h>

#include "client/channel/session.h"

namespace rcuda::client {

// The bytes of one side of a copy.
struct HostRows {
  uint64_t first = 0;  // address
  size_t width_bytes = 0;
  size_t rows = 1, slices = 1;
  size_t pitch_bytes = 0, slice_bytes = 0;  // from row to row, from slice to slice
};

struct StandIn {
  uint64_t first = 0;     // where HostRows::first has gone, laid out alike
  uint64_t callback = 0;  // EventThread::remove_callback() undoes it while no graph has it
};
// `is_source`: the copy reads it.
CUresult make_stand_in(Session& session, wire::ObjectId context, const HostRows& rows,
                       bool is_source, StandIn* made);

// The application's address that a stand-in's first byte stands for; 0 for other addresses.
uint64_t original_of(uint64_t first);

}  // namespace rcuda::client
