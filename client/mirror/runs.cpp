#include "client/mirror/runs.h"

#include <algorithm>
#include <utility>

namespace rcuda::client {

std::vector<Run> pieces_of(const std::vector<Run>& runs, size_t piece_bytes) {
  std::vector<Run> pieces;
  for (const Run& run : runs) {
    for (size_t at = 0; at < run.bytes; at += piece_bytes) {
      pieces.push_back({run.at + at, std::min(piece_bytes, run.bytes - at)});
    }
  }
  return pieces;
}

void append(std::vector<Run>* runs, const Run& next) {
  if (!runs->empty() && runs->back().at + runs->back().bytes == next.at) {
    runs->back().bytes += next.bytes;
  } else {
    runs->push_back(next);
  }
}

void join(std::vector<Run>* runs) {
  std::sort(runs->begin(), runs->end(), [](const Run& a, const Run& b) { return a.at < b.at; });
  std::vector<Run> joined;
  for (const Run& run : *runs) {
    if (joined.empty() || run.at > joined.back().at + joined.back().bytes) {
      joined.push_back(run);
    } else {
      Run& last = joined.back();
      last.bytes = std::max(last.bytes, run.at + run.bytes - last.at);
    }
  }
  *runs = std::move(joined);
}

size_t bytes_of(const std::vector<Run>& runs) {
  size_t bytes = 0;
  for (const Run& run : runs) bytes += run.bytes;
  return bytes;
}

}  // namespace rcuda::client
