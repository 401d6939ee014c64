#include "common/base/log.h"
#include "tests/fuzz/answers_target.h"
#include "tests/fuzz/seed.h"

extern "C" int LLVMFuzzerInitialize(int* count, char*** arguments) {
  rcuda::set_log_level("off");
  rcuda::fuzz::seed(*count, *arguments, rcuda::fuzz::answers_corpus());
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::vector<std::string> corpus = rcuda::fuzz::answers_corpus();
  // Maps every opcode to an existing opcode, so that the fuzzer spends its time on answers.
  std::string input(reinterpret_cast<const char*>(data), size);
  if (size >= 2) {
    const uint16_t choice = static_cast<uint16_t>(data[0] | data[1] << 8);
    input.replace(0, 2, corpus[choice % corpus.size()].substr(0, 2));
  }
  rcuda::fuzz::fuzz_answers(reinterpret_cast<const uint8_t*>(input.data()), input.size());
  return 0;
}
