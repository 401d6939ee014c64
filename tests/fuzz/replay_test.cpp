// Repeats the work of some fuzzers on fixed inputs: of fuzzers whose target has no unit test in
// which this could be included.
#include "tests/fuzz/replay.h"

#include <cstdio>

#include <gtest/gtest.h>

#include "tests/fuzz/events_target.h"
#include "tests/fuzz/identity_target.h"
#include "tests/fuzz/peer_target.h"
#include "tests/fuzz/text_target.h"

namespace rcuda::fuzz {
namespace {

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
