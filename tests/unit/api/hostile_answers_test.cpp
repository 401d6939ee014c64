// The generated client code against damaged answers: it writes nothing beyond the application's
// arrays and reads nothing beyond the reply (run under AddressSanitizer to check). Uses the
// fuzzer's corpus and fixed mutations of it.
#include <gtest/gtest.h>

#include "tests/fuzz/answers_target.h"
#include "tests/fuzz/replay.h"

namespace rcuda::fuzz {
namespace {

TEST_F(FuzzReplayTest, AnswersOfAWorker) {
  const std::vector<std::string> corpus = answers_corpus();
  EXPECT_GT(loopback::samples_of_answers().size(), 150u);
  replay(fuzz_answers, corpus, 100'000);
}

}  // namespace
}  // namespace rcuda::fuzz
