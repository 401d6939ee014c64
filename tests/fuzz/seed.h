// Puts the inputs of the replay tests into a fuzzer's corpus, for fuzzers that would not find such
// inputs in a few minutes.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace rcuda::fuzz {

// `count` and `arguments` are the fuzzer's. The last argument is the corpus's folder.
inline void seed(int count, char** arguments, const std::vector<std::string>& corpus) {
  const std::filesystem::path folder = arguments[count - 1];
  if (!std::filesystem::is_directory(folder)) return;
  for (size_t i = 0; i < corpus.size(); ++i) {
    std::ofstream(folder / ("seed-" + std::to_string(i)), std::ios::binary) << corpus[i];
  }
}

}  // namespace rcuda::fuzz
