#include "tools/rcuda-smi/misspelt.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

namespace rcuda::smi {
namespace {

constexpr std::array<std::string_view, 6> kCommands = {"top",   "topo",   "end",
                                                       "drain", "resume", "reload"};

// The number of mistakes between two words, where neighbours are exchanged at most once.
size_t mistakes(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> counts(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) counts[i][0] = i;
  for (size_t j = 0; j <= b.size(); ++j) counts[0][j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t wrong = a[i - 1] == b[j - 1] ? 0 : 1;
      counts[i][j] =
          std::min({counts[i - 1][j] + 1, counts[i][j - 1] + 1, counts[i - 1][j - 1] + wrong});
      const bool exchanged = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (exchanged) counts[i][j] = std::min(counts[i][j], counts[i - 2][j - 2] + 1);
    }
  }
  return counts[a.size()][b.size()];
}

}  // namespace

const char* find_misspelt(std::string_view word) {
  const char* found = nullptr;
  size_t fewest = 3;
  for (const std::string_view command : kCommands) {
    const size_t count = mistakes(word, command);
    if (count == 0) return nullptr;
    const size_t most = command.size() < 5 ? 1 : 2;
    if (count > most || count >= fewest) continue;
    fewest = count;
    found = command.data();
  }
  return found;
}

}  // namespace rcuda::smi
