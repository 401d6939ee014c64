#include "tests/fuzz/chain_target.h"
#include "tests/fuzz/seed.h"

extern "C" int LLVMFuzzerInitialize(int* count, char*** arguments) {
  rcuda::fuzz::seed(*count, *arguments, rcuda::fuzz::chain_corpus());
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  rcuda::fuzz::fuzz_chain(data, size);
  return 0;
}
