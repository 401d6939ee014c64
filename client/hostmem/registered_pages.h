// The pages that contain registered memory, in runs.
//
// A registration need not end at a page boundary. So two registrations may share a page, which must
// stay in place while either exists. Therefore pages are prepared for the workers in runs. The
// pages of a first registration form one run. A later registration uses the existing runs and adds
// runs for its other pages. A run ends with the last registration that uses it; pages that were
// moved onto a memfd then become private and anonymous again. While other drivers have pinned
// memory of this process, the pages stay on the memfd instead, because those drivers use the
// physical pages. A child of fork() gets its own private pages at once.
// Threads: any. use_pages() and leave_pages() exclude each other. pieces_in_runs() does not wait
// for them, only for a fork in progress.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "client/session/session.h"
#include "common/base/mappings.h"

namespace rcuda::client {

struct PageRun {
  uint64_t first = 0;
  size_t bytes = 0;
  // Inode of the memfd onto which the pages were moved; 0 if they were not moved. The mapping keeps
  // the file alive, so no descriptor is kept: the application has a limited number of them (ulimit
  // -n).
  uint64_t inode = 0;
  std::vector<std::pair<Session*, transport::RegionId>> exposed;
  size_t users = 0;
};

// Makes every page of [first, first + bytes) part of a run. Calls `make` for each new run of pages
// that are not yet in a run; `make` returns whether it succeeded. `end` undoes `make`. Returns
// false, with nothing changed, if a page cannot be used: `make` failed, or the application has
// mapped something else over a page of an existing run.
bool use_pages(uint64_t first, size_t bytes, const std::function<bool(PageRun*)>& make,
               const std::function<void(const PageRun&)>& end);
// Ends the use of these pages by one registration. Calls `end` for each run that no other
// registration uses.
void leave_pages(uint64_t first, size_t bytes, const std::function<void(const PageRun&)>& end);

// Splits the range at the ends of runs, because the workers have one region per run. A range
// without runs is one piece.
std::vector<std::pair<uint64_t, size_t>> pieces_in_runs(uint64_t address, size_t bytes);

// Whether workers of this machine map all pages of the range. Workers map the pages of a run only
// if the pages were moved onto a memfd. Memory in no run is page-locked memory of this library,
// which workers always map.
bool have_backing(uint64_t address, size_t bytes);

// Moves the run's pages onto the memfd and sets `inode`. `parts`: the mappings of the run's pages.
// Returns false, with the pages private as they were, if that is not possible.
bool move_run(PageRun* run, int backing, std::span<const MappedPart> parts);
// Makes the pages ordinary memory of the application again. Logs pages that stay on the memfd.
void give_back(const PageRun& run);

}  // namespace rcuda::client
