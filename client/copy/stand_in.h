// Pageable memory in graphs.
//
// A copy in a graph reads or writes host memory each time the copy executes. The worker cannot
// reach pageable memory, so page-locked memory of this library replaces it: the stand-in. The
// graph's copy in the worker uses the stand-in, and a callback of this process moves the bytes
// directly before or after the copy (server/executor/graphs/graph_copies.h). Graphs and their
// executables own the stand-ins that they use; a stand-in ends with its last owner.
// Threads: any. Blocking: a round trip for each stand-in.
#pragma once

#include <cstddef>
#include <cstdint>

#include <cuda.h>

#include "client/session/session.h"

namespace rcuda::client {

// The bytes of one side of a copy.
struct HostRows {
  uint64_t first = 0;  // address of the first byte
  size_t width_bytes = 0;
  size_t rows = 1, slices = 1;
  size_t pitch_bytes = 0, slice_bytes = 0;  // distance from row to row, from slice to slice
};

struct StandIn {
  uint64_t first = 0;     // stands for HostRows::first; the layout is the same
  uint64_t callback = 0;  // remove_callback() frees the stand-in, unless a graph already holds it
};
// Makes a stand-in for `rows`. `is_source`: the copy reads the stand-in; otherwise the copy writes
// to it.
CUresult make_stand_in(Session& session, wire::ObjectId context, const HostRows& rows,
                       bool is_source, StandIn* made);

// Returns the application's address for the first byte of a stand-in; 0 for other addresses.
uint64_t original_of(uint64_t first);

}  // namespace rcuda::client
