// Runs: parts of a range of memory. Offsets are in bytes from the beginning of the range.
//
// Plain values. Nothing blocks or fails.
#pragma once

#include <cstddef>
#include <vector>

namespace rcuda::client {

struct Run {
  size_t at, bytes;
};

// Cuts the runs into pieces of at most piece_bytes, which threads can handle in parallel.
std::vector<Run> pieces_of(const std::vector<Run>& runs, size_t piece_bytes);
// Adds a run that begins at the end of the last run, or after it.
void append(std::vector<Run>* runs, const Run& next);
// Sorts the runs and joins those that overlap or touch.
void join(std::vector<Run>* runs);
size_t bytes_of(const std::vector<Run>& runs);

}  // namespace rcuda::client
