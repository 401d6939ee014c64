#include "client/memory/registered_pages.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>

#include <sys/stat.h>

namespace rcuda::client {
namespace {

std::mutex change_mutex;  // held while runs are made and ended
std::mutex runs_mutex;    // what others see; taken for changes, too
std::map<uint64_t, PageRun>& runs() {
  static auto* instance = new std::map<uint64_t, PageRun>;
  return *instance;
}

struct Line {
  uint64_t begin, end, inode;
  bool is_shared;
  bool is_ours;  // of a memfd of this library's
};

// Calls `visit` for every mapping of this process in [begin, end), in order of addresses; `visit`
// says whether to go on.
template <typename Visit>
void for_each_mapping(uint64_t begin, uint64_t end, const Visit& visit) {
  std::FILE* maps = std::fopen("/proc/self/maps", "re");
  if (!maps) return;
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
    line.is_ours = line.is_shared && std::strstr(text, kBackingName) != nullptr;
    if (!visit(line)) break;
  }
  std::fclose(maps);
}

// Whether the pages are the run's still. The application may have unmapped them: what registered
// them need not be what keeps the run.
bool are_of(const PageRun& run, uint64_t begin, uint64_t end) {
  struct stat file;
  if (!run.backing) return mapping_of(begin, end - begin) == Mapping::kShared;
  if (::fstat(run.backing.get(), &file) != 0) return false;
  uint64_t reached = begin;
  for_each_mapping(begin, end, [&](const Line& line) {
    if (line.begin > reached || !line.is_shared || line.inode != file.st_ino) return false;
    reached = line.end;
    return true;
  });
  return reached >= end;
}

// The runs that have pages in [begin, end).
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
}

}  // namespace

bool use_pages(uint64_t first, size_t bytes, const std::function<bool(PageRun*)>& make,
               const std::function<void(const PageRun&)>& end_run) {
  const uint64_t end = first + bytes;
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

Mapping mapping_of(uint64_t address, size_t bytes) {
  uint64_t reached = address;
  bool is_shared = false;
  for_each_mapping(address, address + bytes, [&](const Line& line) {
    if (line.begin > reached) return false;
    reached = line.end;
    is_shared |= line.is_shared && !line.is_ours;
    return true;
  });
  if (reached < address + bytes) return Mapping::kNone;
  return is_shared ? Mapping::kShared : Mapping::kPrivate;
}

}  // namespace rcuda::client
