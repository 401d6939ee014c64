// A program that is linked with NCCL and has an RPATH to it, as PyTorch's wheels have. Prints the
// version of the library that the loader chose. nccl_loading_test.py runs it.
#include <cstdio>

#include "tests/support/nccl/nccl_api.h"

int main() {
  int version = 0;
  if (ncclGetVersion(&version) != ncclSuccess) return 1;
  std::printf("NCCL %d\n", version);
  return 0;
}
