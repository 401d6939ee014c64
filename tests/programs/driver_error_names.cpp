// The name of every error of the driver API. Each must have a description; its text may vary.
#include <cstdio>

#include <cuda.h>

int main() {
  for (int code = 0; code <= 1000; ++code) {
    const char *name = nullptr, *text = nullptr;
    const CUresult named = cuGetErrorName(static_cast<CUresult>(code), &name);
    const CUresult described = cuGetErrorString(static_cast<CUresult>(code), &text);
    const bool known = named == CUDA_SUCCESS && name != nullptr && text != nullptr && text[0] != 0;
    const bool unknown = named == CUDA_ERROR_INVALID_VALUE && name == nullptr && text == nullptr;
    if (named != described || (!known && !unknown)) {
      std::fprintf(stderr, "%d: odd answer %d %d\n", code, named, described);
      return 1;
    }
    if (known) std::printf("%d %s\n", code, name);
  }
}
