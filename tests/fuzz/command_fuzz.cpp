#include "tests/fuzz/command_target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::vector<std::string> corpus = rcuda::fuzz::command_corpus();
  // Maps every opcode to an existing opcode, so that the fuzzer spends its time on bodies.
  std::string input(reinterpret_cast<const char*>(data), size);
  if (size >= 2) {
    const uint16_t choice = static_cast<uint16_t>(data[0] | data[1] << 8);
    input.replace(0, 2, corpus[choice % corpus.size()].substr(0, 2));
  }
  (void)rcuda::fuzz::fuzz_command(reinterpret_cast<const uint8_t*>(input.data()), input.size());
  return 0;
}
