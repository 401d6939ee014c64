#include "common/base/nearest.h"

#include <algorithm>
#include <cstddef>

namespace rcuda {
namespace {

// How many letters of `a` must be changed, added, removed or swapped with the next letter to get
// `b` (the optimal string alignment distance).
size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> cost(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) cost[i][0] = i;
  for (size_t j = 0; j <= b.size(); ++j) cost[0][j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      size_t best = std::min({cost[i - 1][j] + 1, cost[i][j - 1] + 1,
                              cost[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        best = std::min(best, cost[i - 2][j - 2] + 1);
      }
      cost[i][j] = best;
    }
  }
  return cost[a.size()][b.size()];
}

}  // namespace

std::string nearest(std::string_view word, const std::vector<std::string>& names) {
  constexpr size_t kMostLetters = 64;    // a longer word is not a misspelt name
  constexpr size_t kLeastBeginning = 3;  // letters that word and name must share as a beginning
  if (word.size() > kMostLetters) return {};
  std::string best;
  size_t least = std::clamp<size_t>(word.size() / 3, 1, 3) + 1;
  for (const std::string& name : names) {
    size_t letters = distance(word, name);
    const bool is_beginning = name.starts_with(word) || word.starts_with(name);
    if (is_beginning && std::min(word.size(), name.size()) >= kLeastBeginning) {
      letters = std::min<size_t>(letters, 1);
    }
    if (letters >= least) continue;
    least = letters;
    best = name;
  }
  return best;
}

std::string did_you_mean(std::string_view word, const std::vector<std::string>& names) {
  const std::string name = nearest(word, names);
  return name.empty() ? name : "; did you mean " + name + "?";
}

}  // namespace rcuda
