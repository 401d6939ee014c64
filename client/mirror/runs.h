// Runs: parts of a range of memory, in bytes from the range's begin.
//
// Plain values. Nothing blocks or fails.
#pragma once

#include <cstddef>
#include <vector>

namespace rcuda::client {

struct Run {
  size_t at, bytes;
};

// The runs in pieces of at most piece_bytes, each of which one thread may handle.
std::vector<Run> pieces_of(const std::vector<Run>& runs, size_t piece_bytes);
// Adds a run that begins at the end of the last run, or after it.
void append(std::vector<Run>* runs, const Run& next);
// Makes the runs ascending, so that none overlaps or touches the next.
void join(std::vector<Run>* runs);
size_t bytes_of(const std::vector<Run>& runs);

}  // namespace rcuda::client
