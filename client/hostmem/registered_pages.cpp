#include "client/hostmem/registered_pages.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <map>
#include <utility>

#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/hostmem/move_pages.h"
#include "common/base/log.h"
#include "common/base/mutex.h"
#include "common/base/unique_fd.h"
#include "common/base/units.h"

namespace rcuda::client {
namespace {

Mutex change_mutex;  // held while runs are made or ended
Mutex runs_mutex;    // guards runs(); writers hold both mutexes, readers one
std::map<uint64_t, PageRun>& runs() {
  static auto* instance = new std::map<uint64_t, PageRun>;
  return *instance;
}

// Whether a child of fork() has failed to copy some of the moved pages. The child may still use the
// pages of the memfd, so they must not be freed.
bool shared_with_child RCUDA_GUARDED_BY(change_mutex) = false;

// Returns the parts of [begin, end) that are still mapped to the run's memfd. The application may
// have unmapped the rest, because a run can outlive the registration that made it. `all`: the
// mappings in the range, and perhaps others, in ascending order.
std::vector<MappedPart> moved_parts(const PageRun& run, uint64_t begin, uint64_t end,
                                    const std::vector<MappedPart>& all) {
  std::vector<MappedPart> parts;
  auto part = std::partition_point(all.begin(), all.end(),
                                   [&](const MappedPart& known) { return known.end <= begin; });
  for (; part != all.end() && part->begin < end; ++part) {
    if (!part->is_shared || part->inode != run.inode) continue;
    MappedPart& moved = parts.emplace_back(*part);
    moved.begin = std::max(begin, moved.begin);
    moved.end = std::min(end, moved.end);
  }
  return parts;
}

std::vector<MappedPart> moved_parts(const PageRun& run, uint64_t begin, uint64_t end) {
  if (run.inode == 0) return {};
  return moved_parts(run, begin, end, mappings_in(begin, end));
}

bool are_of(const PageRun& run, uint64_t begin, uint64_t end) {
  // Pages that were not moved may have any mapping, because their bytes are copied.
  if (run.inode == 0) return cover(mappings_in(begin, end), begin, end);
  return cover(moved_parts(run, begin, end), begin, end);
}

// Returns the runs that have pages in [begin, end).
std::vector<PageRun*> runs_in(uint64_t begin, uint64_t end) {
  std::vector<PageRun*> found;
  auto run = runs().upper_bound(begin);
  if (run != runs().begin() && std::prev(run)->first + std::prev(run)->second.bytes > begin) {
    --run;
  }
  for (; run != runs().end() && run->first < end; ++run) found.push_back(&run->second);
  return found;
}

// Runs whose registrations have ended, but whose pages could not move off the memfd because another
// driver had pinned memory.
std::vector<PageRun>& left_behind() RCUDA_REQUIRES(change_mutex) {
  static auto* instance = new std::vector<PageRun>;
  return *instance;
}

void end_left_behind() RCUDA_REQUIRES(change_mutex) {
  if (left_behind().empty() || any_page_pinned()) return;
  for (const PageRun& run : std::exchange(left_behind(), {})) give_back(run);
}

// Removes the run. give_back() may copy all its pages, so it runs without runs_mutex.
void take_out(uint64_t first, const std::function<void(const PageRun&)>& end_run)
    RCUDA_REQUIRES(change_mutex) {
  PageRun run;
  {
    MutexLock lock(runs_mutex);
    run = std::move(runs()[first]);
    runs().erase(first);
  }
  end_run(run);
  if (run.inode == 0) return;
  if (any_page_pinned()) {
    left_behind().push_back(std::move(run));
  } else {
    give_back(run);
  }
}

// A child of fork() must get its own copy of private memory, with the contents at the time of the
// fork. Pages on a memfd would be shared with the parent. So the child copies them, and the parent
// waits. (The kernel also copies pinned pages for a child.) The forking thread holds both mutexes
// during the fork.
std::vector<MappedPart>& forked = *new std::vector<MappedPart>;
int copied[2] = {-1, -1};  // a pipe: the child reports whether it has copied all pages

void before_fork() RCUDA_ACQUIRE(change_mutex, runs_mutex) {
  change_mutex.lock();
  runs_mutex.lock();
  forked.clear();
  std::vector<MappedPart> all;
  if (!runs().empty() || !left_behind().empty()) all = mappings_in(0, UINT64_MAX);
  bool any_moved = false;
  const auto add = [&](const PageRun& run) {
    if (run.inode == 0) return;
    any_moved = true;
    const std::vector<MappedPart> parts = moved_parts(run, run.first, run.first + run.bytes, all);
    forked.insert(forked.end(), parts.begin(), parts.end());
  };
  for (const auto& [first, run] : runs()) add(run);
  for (const PageRun& run : left_behind()) add(run);
  // `forked` may be empty because the list of mappings could not be read (no descriptor was free).
  // The child then copies nothing.
  if (any_moved && forked.empty()) shared_with_child = true;
  int ends[2];
  if (forked.empty() || ::pipe2(ends, O_CLOEXEC) != 0) ends[0] = ends[1] = -1;
  UniqueFd reads(ends[0]), writes(ends[1]);
  const bool made = reads && writes;
  copied[0] = made ? reads.release() : -1;
  copied[1] = made ? writes.release() : -1;
}

void after_fork_in_parent() RCUDA_RELEASE(runs_mutex, change_mutex) {
  char all = 0;
  if (copied[0] >= 0) {
    ::close(copied[1]);
    while (::read(copied[0], &all, 1) < 0 && errno == EINTR) continue;  // ends if the child dies
    ::close(copied[0]);
  }
  if (!forked.empty() && all == 0) shared_with_child = true;
  runs_mutex.unlock();
  change_mutex.unlock();
}

void after_fork_in_child() RCUDA_RELEASE(runs_mutex, change_mutex) {
  // If there is no memory for a copy, the pages stay shared with the parent.
  char all = 1;
  for (const MappedPart& part : forked) {
    if (!copy_off(part)) all = 0;
  }
  if (copied[0] >= 0) {
    (void)!::write(copied[1], &all, 1);
    ::close(copied[0]);
    ::close(copied[1]);
  }
  runs().clear();  // not unexposed: the regions belong to the parent's sessions
  left_behind().clear();
  runs_mutex.unlock();
  change_mutex.unlock();
}

}  // namespace

bool use_pages(uint64_t first, size_t bytes, const std::function<bool(PageRun*)>& make,
               const std::function<void(const PageRun&)>& end_run) {
  const uint64_t end = first + bytes;
  [[maybe_unused]] static const int handlers =
      pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
  MutexLock changing(change_mutex);
  end_left_behind();
  std::vector<std::pair<uint64_t, uint64_t>> missing;
  uint64_t reached = first;
  for (const PageRun* run : runs_in(first, end)) {
    if (!are_of(*run, std::max(first, run->first), std::min(end, run->first + run->bytes))) {
      return false;
    }
    if (run->first > reached) missing.emplace_back(reached, run->first);
    reached = run->first + run->bytes;
  }
  if (reached < end) missing.emplace_back(reached, end);
  for (size_t i = 0; i < missing.size(); ++i) {
    PageRun run;
    run.first = missing[i].first;
    run.bytes = missing[i].second - missing[i].first;
    if (make(&run)) {
      MutexLock lock(runs_mutex);
      runs()[run.first] = std::move(run);
      continue;
    }
    give_back(run);
    while (i-- > 0) take_out(missing[i].first, end_run);
    return false;
  }
  for (PageRun* run : runs_in(first, end)) ++run->users;
  return true;
}

void leave_pages(uint64_t first, size_t bytes, const std::function<void(const PageRun&)>& end_run) {
  MutexLock changing(change_mutex);
  end_left_behind();
  for (PageRun* run : runs_in(first, first + bytes)) {
    if (--run->users == 0) take_out(run->first, end_run);
  }
}

std::vector<std::pair<uint64_t, size_t>> pieces_in_runs(uint64_t address, size_t bytes) {
  std::vector<std::pair<uint64_t, size_t>> pieces;
  uint64_t at = address;
  const uint64_t end = address + bytes;
  MutexLock lock(runs_mutex);
  for (const PageRun* run : runs_in(address, end)) {
    const uint64_t until = std::min(end, run->first + run->bytes);
    pieces.emplace_back(at, until - at);
    at = until;
  }
  if (at < end) pieces.emplace_back(at, end - at);
  return pieces;
}

bool have_backing(uint64_t address, size_t bytes) {
  MutexLock lock(runs_mutex);
  const std::vector<PageRun*> found = runs_in(address, address + bytes);
  return std::all_of(found.begin(), found.end(),
                     [](const PageRun* run) { return run->inode != 0; });
}

bool move_run(PageRun* run, int backing, std::span<const MappedPart> parts) {
  struct stat file {};
  if (::fstat(backing, &file) != 0) return false;
  run->inode = file.st_ino;
  if (move_onto(backing, parts)) return true;
  const int why = errno;
  give_back(*run);
  run->inode = 0;
  errno = why;
  return false;
}

// The thread-safety analysis is off: all callers run inside of use_pages() or leave_pages(), which
// hold change_mutex.
void give_back(const PageRun& run) RCUDA_NO_THREAD_SAFETY_ANALYSIS {
  for (const MappedPart& part : moved_parts(run, run.first, run.first + run.bytes)) {
    if (!move_off(part, !shared_with_child)) {
      RCUDA_WARN(
          "%s of memory at %p are no longer registered, but stay shared with child processes, "
          "because they cannot become private memory again: %s",
          exact_bytes_text(part.bytes()).c_str(), part.address(), std::strerror(errno));
    }
  }
}

}  // namespace rcuda::client
