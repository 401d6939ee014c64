#include "common/base/log.h"
#include "tests/fuzz/peer_target.h"

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  rcuda::set_log_level("off");
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  rcuda::fuzz::fuzz_peer(data, size);
  return 0;
}
