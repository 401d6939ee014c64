// Every handler against damaged bodies: it refuses them only as malformed, and reads or writes
// nothing out of bounds (run under AddressSanitizer to check). Uses the fuzzer's corpus and fixed
// mutations of it.
#include <gtest/gtest.h>

#include "tests/fuzz/command_target.h"
#include "tests/fuzz/mutate.h"

namespace rcuda {
namespace {

class HostileCommandsTest : public testing::Test {
 protected:
  static bool run(const std::string& input) {
    return fuzz::fuzz_command(reinterpret_cast<const uint8_t*>(input.data()), input.size());
  }
};

TEST_F(HostileCommandsTest, WellFormedCommandsAreAccepted) {
  const auto corpus = fuzz::command_corpus();
  EXPECT_GT(corpus.size(), 100u);
  for (const std::string& input : corpus) {
    EXPECT_TRUE(run(input)) << loopback::Recorded::get().printed;
  }
}

TEST_F(HostileCommandsTest, EveryTruncationIsRefused) {
  for (const std::string& input : fuzz::command_corpus()) {
    for (size_t size = 2; size < input.size(); ++size) {
      EXPECT_FALSE(run(input.substr(0, size))) << loopback::Recorded::get().printed;
    }
  }
}

TEST_F(HostileCommandsTest, BytesLeftOverAreRefused) {
  for (const std::string& input : fuzz::command_corpus()) {
    EXPECT_FALSE(run(input + std::string(8, '\0'))) << loopback::Recorded::get().printed;
  }
}

TEST_F(HostileCommandsTest, MutationsStayInBounds) {
  const auto corpus = fuzz::command_corpus();
  fuzz::Mutator mutator(1);
  int accepted = 0, refused = 0;
  for (int round = 0; round < 1000; ++round) {
    for (const std::string& input : corpus) {
      const std::string body = mutator.mutate(input.substr(2));
      (run(input.substr(0, 2) + body) ? accepted : refused) += 1;
    }
  }
  EXPECT_GT(accepted, 0);
  EXPECT_GT(refused, 0);
}

TEST_F(HostileCommandsTest, OpcodesThatDoNotExistAreRefused) {
  EXPECT_EQ(server::generated_handler(0), nullptr);
  EXPECT_EQ(server::generated_handler(0xff), nullptr);
  EXPECT_EQ(server::generated_handler(0xffff), nullptr);
}

}  // namespace
}  // namespace rcuda
