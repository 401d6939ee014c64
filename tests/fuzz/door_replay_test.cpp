// Repeats parts of the door fuzzers' work on fixed inputs. It is a program of its own, because it
// links door_munge.h instead of the real libmunge.
#include <gtest/gtest.h>

#include "tests/fuzz/door_target.h"
#include "tests/fuzz/replay.h"

namespace rcuda::fuzz {
namespace {

TEST_F(FuzzReplayTest, ClientsOfADaemon) { replay(fuzz_door, door_corpus(false), 1'000); }

TEST_F(FuzzReplayTest, ClientsThroughADoorThatLies) { replay(fuzz_door, door_corpus(true), 1'000); }

}  // namespace
}  // namespace rcuda::fuzz
