#include "common/base/log.h"
#include "tests/fuzz/door_target.h"
#include "tests/fuzz/seed.h"

extern "C" int LLVMFuzzerInitialize(int* count, char*** arguments) {
  rcuda::set_log_level("off");
  rcuda::fuzz::seed(*count, *arguments, rcuda::fuzz::door_corpus(true));
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  rcuda::fuzz::fuzz_door(data, size);
  return 0;
}
