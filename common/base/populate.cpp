#include "common/base/populate.h"

#include <algorithm>
#include <thread>
#include <vector>

#include <sys/mman.h>

#include "common/base/pages.h"
#include "common/base/start_thread.h"
#include "common/base/usable_processors.h"

namespace rcuda {

void populate_pages(std::byte* base, size_t bytes) {
  constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, which older headers lack
  constexpr size_t kMostThreads = 4;
  constexpr size_t kLeastBytes = size_t{4} << 20;
  const size_t cores = usable_processors();
  const size_t parts =
      std::clamp<size_t>(std::min(bytes / kLeastBytes, cores / 2), 1, kMostThreads);
  const size_t part_bytes = whole_pages(bytes / parts);
  const auto populate_part = [=](size_t part) {
    const size_t begin = part * part_bytes;
    (void)::madvise(base + begin, std::min(part_bytes, bytes - begin), kPopulateWrite);
  };
  std::vector<std::thread> threads(parts);
  for (size_t part = 1; part < parts; ++part) {
    if (!start_thread(&threads[part], [=] { populate_part(part); }).ok()) populate_part(part);
  }
  populate_part(0);
  for (std::thread& thread : threads) {
    if (thread.joinable()) thread.join();
  }
}

}  // namespace rcuda
