// The pages that registered memory lies in.
//
// Registrations need not end where pages do. Neighbours may have a page in common, which must stay
// where it is for as long as one of them lives. So pages are made ready for the workers in runs:
// what the first registration needs is one, later ones use what is there and add runs for the rest,
// and a run ends with the last registration that lies in it. Then the pages are private and
// anonymous again. A child of fork() has its own from the start.
// Threads: any. use_pages() and leave_pages() wait for one another, pieces_in_runs() for nobody.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "client/channel/session.h"

namespace rcuda::client {

struct PageRun {
  uint64_t first = 0;
  size_t bytes = 0;
  // Of the memfd that the pages were moved onto; 0 when they were not. The file lives while it is
  // mapped, and needs no descriptor: the application has only so many (ulimit -n).
  uint64_t inode = 0;
  std::vector<std::pair<Session*, transport::RegionId>> exposed;
  size_t users = 0;
};

// Every page of [first, first + bytes) becomes part of a run, those that are in none by `make`,
// which says whether it could. `end` undoes it. False, with nothing changed, when a page cannot be
// used: `make` failed, or the application has mapped something else there since.
bool use_pages(uint64_t first, size_t bytes, const std::function<bool(PageRun*)>& make,
               const std::function<void(const PageRun&)>& end);
void leave_pages(uint64_t first, size_t bytes, const std::function<void(const PageRun&)>& end);

// Where a run ends the workers have another region: [address, address + bytes) without such a place
// in the middle. One piece for memory that is in no run.
std::vector<std::pair<uint64_t, size_t>> pieces_in_runs(uint64_t address, size_t bytes);

// How the range is mapped in this process. kNone: not all of it is; kShared: others may see what is
// written there, files, processes or, in a run, workers.
enum class Mapping { kNone, kPrivate, kShared };
Mapping mapping_of(uint64_t address, size_t bytes);

}  // namespace rcuda::client
