// A test that repeats a fuzzer's work on fixed inputs under any compiler.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/base/log.h"
#include "tests/fuzz/mutate.h"

namespace rcuda::fuzz {

class FuzzReplayTest : public ::testing::Test {
 protected:
  void SetUp() override { set_log_level(LogLevel::kOff); }
  void TearDown() override { set_log_level(LogLevel::kWarn); }

  // The inputs unchanged, truncated at many places, and mutated.
  static void replay(void (*target)(const uint8_t*, size_t), const std::vector<std::string>& corpus,
                     uint32_t rounds) {
    const auto run = [target](const std::string& input) {
      // An exact heap block, so that a sanitizer detects reads beyond its end.
      const std::vector<uint8_t> bytes(input.begin(), input.end());
      target(bytes.data(), bytes.size());
    };
    for (const std::string& input : corpus) {
      for (size_t size = 0; size <= input.size(); size += 1 + size / 16) run(input.substr(0, size));
      run(input);
    }
    for (uint32_t round = 0; round < rounds; ++round) {
      run(Mutator(round).mutate(corpus[round % corpus.size()]));
    }
  }
};

}  // namespace rcuda::fuzz
