// Loads modules and libraries from complete and from truncated files.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include <cuda.h>
#include <unistd.h>

#include "tests/support/short_images.h"

namespace {

void expect(CUresult expected, CUresult result, const char* what) {
  if (result == expected) return;
  std::fprintf(stderr, "%s: %d, not %d\n", what, result, expected);
  std::exit(1);
}

void load(const std::string& image, CUresult expected) {
  char path[] = "/tmp/rcuda_image_files.XXXXXX";
  close(mkstemp(path));
  std::ofstream(path, std::ios::binary) << image;
  CUmodule module;
  CUlibrary library;
  expect(expected, cuModuleLoad(&module, path), "cuModuleLoad");
  expect(expected, cuLibraryLoadFromFile(&library, path, nullptr, nullptr, 0, nullptr, nullptr, 0),
         "cuLibraryLoadFromFile");
  unlink(path);
}

}  // namespace

int main() {
  CUcontext context;
  expect(CUDA_SUCCESS, cuInit(0), "cuInit");
  expect(CUDA_SUCCESS, cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
  expect(CUDA_SUCCESS, cuCtxSetCurrent(context), "cuCtxSetCurrent");
  load(".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry k() { ret; }\n",
       CUDA_SUCCESS);
  for (const std::string& image : rcuda::test::short_images()) {
    load(image, CUDA_ERROR_INVALID_IMAGE);
  }
  load("", CUDA_ERROR_INVALID_IMAGE);
  CUmodule module;
  expect(CUDA_ERROR_OUT_OF_MEMORY, cuModuleLoad(&module, "/tmp"), "cuModuleLoad of a folder");
}
