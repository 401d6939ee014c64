// The cost of threads that poll for a thread that works: rcuda's threads poll for some microseconds
// before they sleep. Prints the milliseconds of a piece of work for each kind and number of polling
// threads: the median and, in brackets, the range of the middle three quarters. This range shows
// how much the machine's own speed changes.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/cpu_pause.h"

namespace {

using Clock = std::chrono::steady_clock;

// The measured work: allocations, comparisons and jumps, as in an interpreter.
double work_ms() {
  const Clock::time_point begin = Clock::now();
  std::map<std::string, int> counts;
  uint32_t random = 1;
  for (int i = 0; i < 30'000; ++i) {
    random = random * 1'664'525 + 1'013'904'223;
    counts[std::to_string(random % 5000)] += i;
  }
  static volatile size_t result;
  result = counts.size();
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

enum class Polling { kPauses, kYields, kBoth, kSocket };
constexpr const char* kNames[] = {"pauses", "yields", "32 pauses, a yield",
                                  "recv, 32 pauses, a yield"};

void poll(Polling how, const std::atomic<bool>& over) {
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) != 0) return;
  char bytes[64];
  while (!over.load(std::memory_order_relaxed)) {
    if (how == Polling::kSocket) (void)!recv(sockets[0], bytes, sizeof bytes, MSG_DONTWAIT);
    for (int i = 0; how != Polling::kYields && i < 32; ++i) rcuda::cpu_pause();
    if (how != Polling::kPauses) sched_yield();
  }
  close(sockets[0]);
  close(sockets[1]);
}

}  // namespace

int main() {
  constexpr int kCounts[] = {0, 1, 2, 3, 4, 6, 8, 12};
  constexpr int kRounds = 12;
  std::map<std::pair<int, int>, std::vector<double>> times;
  for (int round = 0; round < kRounds; ++round) {
    for (int how = 0; how < 4; ++how) {
      for (const int count : kCounts) {
        std::atomic<bool> over{false};
        std::vector<std::thread> threads;
        for (int i = 0; i < count; ++i) {
          threads.emplace_back([&over, how] { poll(static_cast<Polling>(how), over); });
        }
        usleep(3000);
        for (int i = 0; i < 3; ++i) times[{how, count}].push_back(work_ms());
        over = true;
        for (std::thread& thread : threads) thread.join();
      }
    }
  }
  for (auto& [which, values] : times) {
    std::sort(values.begin(), values.end());
    const auto part = [&](size_t eighths) { return values[values.size() * eighths / 8]; };
    std::printf("%-25s %2d threads: %5.1f ms (%.1f to %.1f)\n", kNames[which.first], which.second,
                part(4), part(1), part(7));
  }
  return 0;
}
