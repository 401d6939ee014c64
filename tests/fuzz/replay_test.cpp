// Fixed parts of the fuzzers' work, for fuzzers whose code has no unit test that could include
// them.
#include <cstdio>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/base/log.h"
#include "tests/fuzz/events_target.h"
#include "tests/fuzz/identity_target.h"
#include "tests/fuzz/mutate.h"
#include "tests/fuzz/peer_target.h"
#include "tests/fuzz/text_target.h"

namespace rcuda::fuzz {
namespace {

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

TEST_F(FuzzReplayTest, WhatUsersWrite) { replay(fuzz_text, text_corpus(), 20'000); }

TEST_F(FuzzReplayTest, TokensAndCertificates) { replay(fuzz_identity, identity_corpus(), 20'000); }

TEST_F(FuzzReplayTest, EventsOfAWorker) {
  ::testing::internal::CaptureStdout();  // output of kernels
  ::testing::internal::CaptureStderr();
  replay(fuzz_events, events_corpus(), 1'000);
  std::fflush(stdout);
  (void)::testing::internal::GetCapturedStdout();
  (void)::testing::internal::GetCapturedStderr();
}

TEST_F(FuzzReplayTest, MessagesOfAnotherWorker) { replay(fuzz_peer, peer_corpus(), 1'000); }

}  // namespace
}  // namespace rcuda::fuzz
