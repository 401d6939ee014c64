#include "client/memory/registered_pages.h"

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include "client/memory/move_pages.h"
#include "common/base/log.h"
#include "common/base/proc_self.h"
#include "common/base/unique_fd.h"

namespace rcuda::client {
namespace {

std::mutex change_mutex;  // held while runs are made or ended
std::mutex runs_mutex;    // guards runs(); writers hold both mutexes, readers one
std::map<uint64_t, PageRun>& runs() {
  static auto* instance = new std::map<uint64_t, PageRun>;
  return *instance;
}

struct Line {
  uint64_t begin, end, inode;
  bool is_shared;
};

// Calls `visit` for each mapping of this process that overlaps [begin, end), in address order,
// until it returns false. Returns false, with no call made, if there is no /proc.
template <typename Visit>
bool for_each_mapping(uint64_t begin, uint64_t end, const Visit& visit) {
  std::FILE* maps = std::fopen(proc_self("maps").c_str(), "re");
  if (!maps) return false;
  char text[4096 + 256], access[5];
  Line line;
  while (std::fgets(text, sizeof text, maps)) {
    if (std::sscanf(text, "%" SCNx64 "-%" SCNx64 " %4s %*x %*x:%*x %" SCNu64, &line.begin,
                    &line.end, access, &line.inode) != 4 ||
        line.end <= begin) {
      continue;
    }
    if (line.begin >= end) break;
    line.is_shared = access[3] == 's';
    if (!visit(line)) break;
  }
  std::fclose(maps);
  return true;
}

// Pages of one mapping of a run's memfd.
struct Piece {
  void* begin;
  size_t bytes;
};

std::vector<Line> shared_mappings(uint64_t begin, uint64_t end) {
  std::vector<Line> lines;
  (void)for_each_mapping(begin, end, [&](const Line& line) {
    if (line.is_shared) lines.push_back(line);
    return true;
  });
  return lines;
}

// The parts of [begin, end) that are still mapped to the run's memfd. The application may have
// unmapped the rest, because a run can outlive the registration that made it.
std::vector<Piece> pieces_of(const PageRun& run, uint64_t begin, uint64_t end,
                             const std::vector<Line>& shared) {
  std::vector<Piece> pieces;
  if (run.inode == 0) return pieces;
  for (const Line& line : shared) {
    const uint64_t from = std::max(begin, line.begin), to = std::min(end, line.end);
    if (line.inode == run.inode && from < to) {
      pieces.push_back({reinterpret_cast<void*>(from), to - from});
    }
  }
  return pieces;
}

bool are_of(const PageRun& run, uint64_t begin, uint64_t end) {
  if (run.inode == 0) return mapping_of(begin, end - begin) == PageMapping::kShared;
  size_t bytes = 0;
  for (const Piece& piece : pieces_of(run, begin, end, shared_mappings(begin, end))) {
    bytes += piece.bytes;
  }
  return bytes == end - begin;
}

// Makes the pages ordinary memory of the application again.
void give_back(const PageRun& run) {
  const uint64_t end = run.first + run.bytes;
  for (const Piece& piece : pieces_of(run, run.first, end, shared_mappings(run.first, end))) {
    if (!move_off(piece.begin, piece.bytes)) {
      RCUDA_WARN("%zu bytes at %p, no longer registered, stay shared memory: %s", piece.bytes,
                 piece.begin, std::strerror(errno));
    }
  }
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

void take_out(uint64_t first, const std::function<void(const PageRun&)>& end_run) {
  PageRun run;
  {
    std::lock_guard lock(runs_mutex);
    run = std::move(runs()[first]);
    runs().erase(first);
  }
  end_run(run);
  give_back(run);
}

// A child of fork() must get its own copy of private memory, with the contents at the time of the
// fork. Pages on a memfd would be shared with the parent. So the child copies them, and the parent
// waits. (The kernel also copies pinned pages for a child.) The forking thread holds both mutexes
// meanwhile.
std::vector<Piece>& forked = *new std::vector<Piece>;
int copied[2] = {-1, -1};  // a pipe: the child reports that it has copied

void before_fork() {
  change_mutex.lock();
  runs_mutex.lock();
  forked.clear();
  const std::vector<Line> shared =
      runs().empty() ? std::vector<Line>() : shared_mappings(0, UINT64_MAX);
  for (const auto& [first, run] : runs()) {
    const std::vector<Piece> pieces = pieces_of(run, first, first + run.bytes, shared);
    forked.insert(forked.end(), pieces.begin(), pieces.end());
  }
  int ends[2];
  if (forked.empty() || ::pipe2(ends, O_CLOEXEC) != 0) ends[0] = ends[1] = -1;
  UniqueFd reads(ends[0]), writes(ends[1]);
  const bool made = reads && writes;
  copied[0] = made ? reads.release() : -1;
  copied[1] = made ? writes.release() : -1;
}

void after_fork_in_parent() {
  if (copied[0] >= 0) {
    ::close(copied[1]);
    char byte;
    while (::read(copied[0], &byte, 1) < 0 && errno == EINTR) continue;  // or the child dies
    ::close(copied[0]);
  }
  runs_mutex.unlock();
  change_mutex.unlock();
}

void after_fork_in_child() {
  // If there is no memory for a copy, the pages stay shared with the parent.
  for (const Piece& piece : forked) (void)copy_off(piece.begin, piece.bytes);
  if (copied[0] >= 0) {
    (void)!::write(copied[1], "", 1);
    ::close(copied[0]);
    ::close(copied[1]);
  }
  runs().clear();  // only the parent has exposed them
  runs_mutex.unlock();
  change_mutex.unlock();
}

}  // namespace

bool use_pages(uint64_t first, size_t bytes, const std::function<bool(PageRun*)>& make,
               const std::function<void(const PageRun&)>& end_run) {
  const uint64_t end = first + bytes;
  [[maybe_unused]] static const int handlers =
      pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
  std::lock_guard changing(change_mutex);
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
      std::lock_guard lock(runs_mutex);
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
  std::lock_guard changing(change_mutex);
  for (PageRun* run : runs_in(first, first + bytes)) {
    if (--run->users == 0) take_out(run->first, end_run);
  }
}

std::vector<std::pair<uint64_t, size_t>> pieces_in_runs(uint64_t address, size_t bytes) {
  std::vector<std::pair<uint64_t, size_t>> pieces;
  uint64_t at = address;
  const uint64_t end = address + bytes;
  std::lock_guard lock(runs_mutex);
  for (const PageRun* run : runs_in(address, end)) {
    const uint64_t until = std::min(end, run->first + run->bytes);
    pieces.emplace_back(at, until - at);
    at = until;
  }
  if (at < end) pieces.emplace_back(at, end - at);
  return pieces;
}

// MS_ASYNC only checks that every page is mapped.
PageMapping unlisted_mapping_of(uint64_t address, size_t bytes) {
  const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  const uint64_t first = address / page * page;
  void* const pages = reinterpret_cast<void*>(first);
  const bool mapped = ::msync(pages, address + bytes - first, MS_ASYNC) == 0;
  return mapped ? PageMapping::kShared : PageMapping::kNone;
}

PageMapping mapping_of(uint64_t address, size_t bytes) {
  uint64_t reached = address;
  bool is_shared = false;
  const bool listed = for_each_mapping(address, address + bytes, [&](const Line& line) {
    if (line.begin > reached) return false;
    reached = line.end;
    is_shared |= line.is_shared;
    return true;
  });
  if (!listed) return unlisted_mapping_of(address, bytes);
  if (reached < address + bytes) return PageMapping::kNone;
  return is_shared ? PageMapping::kShared : PageMapping::kPrivate;
}

}  // namespace rcuda::client
