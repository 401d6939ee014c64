#include <string>

#include <unistd.h>

#include "show.h"

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

namespace {

// The bytes after an image must not look like another image.
alignas(16) const char kZeros[4096] = {};

class EmptyFile {
 public:
  EmptyFile() {
    const int file = mkstemp(path_);
    CHECK(file >= 0);
    close(file);
  }
  ~EmptyFile() { unlink(path_); }
  EmptyFile(const EmptyFile&) = delete;
  EmptyFile& operator=(const EmptyFile&) = delete;
  const char* path() const { return path_; }

 private:
  char path_[64] = "/tmp/odd-arguments-XXXXXX";
};

}  // namespace

void code(const World& w) {
  const EmptyFile file;
  const char* const empty = file.path();
  CUmodule module = nullptr;
  CUlibrary library = nullptr;
  CUfunction function = nullptr;
  CUkernel kernel = nullptr;
  CUdeviceptr address = 5;
  size_t bytes = 5, offset = 5;
  int number = 5;
  CUjit_option option = odd<CUjit_option>();
  void* nothing = nullptr;
  SHOW(cuModuleLoadData(&module, kZeros));
  SHOW(cuModuleLoadData(&module, "text"));
  SHOW(cuModuleLoadDataEx(&module, kPtx, 1, &option, &nothing));
  SHOW(cuModuleLoadFatBinary(&module, kZeros));
  SHOW(cuModuleLoad(&module, ""));
  SHOW(cuModuleLoad(&module, "/nonexistent/file"));
  SHOW(cuModuleLoad(&module, "/"));
  SHOW(cuModuleLoad(&module, empty));
  SHOW(cuModuleUnload(nullptr));
  SHOW(cuModuleGetFunction(&function, w.module, ""));
  SHOW(cuModuleGetGlobal(&address, &bytes, w.module, ""));
  SHOW(cuModuleEnumerateFunctions(&function, 0, w.module));
  SHOW(cuLibraryLoadData(&library, kZeros, nullptr, nullptr, 0, nullptr, nullptr, 0));
  SHOW(cuLibraryLoadData(&library, "text", nullptr, nullptr, 0, nullptr, nullptr, 0));
  unsigned kernels = 5;
  SHOW(cuLibraryGetKernelCount(&kernels, library));
  show_value("kernels", kernels);
  SHOW(cuLibraryEnumerateKernels(&kernel, 1, library));
  SHOW(cuLibraryGetKernel(&kernel, library, "k"));
  SHOW(cuLibraryGetModule(&module, library));
  SHOW(cuLibraryGetGlobal(&address, &bytes, library, "g"));
  SHOW(cuLibraryGetManaged(&address, &bytes, library, "g"));
  SHOW(cuLibraryUnload(library));
  SHOW(cuLibraryLoadData(&library, kPtx, &option, &nothing, 1, nullptr, nullptr, 0));
  CUlibraryOption library_option = odd<CUlibraryOption>();
  SHOW(cuLibraryLoadData(&library, kPtx, nullptr, nullptr, 0, &library_option, &nothing, 1));
  SHOW(cuLibraryLoadFromFile(&library, "", nullptr, nullptr, 0, nullptr, nullptr, 0));
  SHOW(cuLibraryLoadFromFile(&library, empty, nullptr, nullptr, 0, nullptr, nullptr, 0));
  SHOW(cuLibraryUnload(nullptr));
  SHOW(cuLibraryGetKernel(&kernel, w.library, ""));
  SHOW(cuLibraryGetGlobal(&address, &bytes, w.library, ""));
  SHOW(cuLibraryGetManaged(&address, &bytes, w.library, "words"));
  SHOW(cuLibraryGetUnifiedFunction(&nothing, w.library, ""));
  SHOW(cuLibraryEnumerateKernels(&kernel, 0, w.library));
  SHOW(cuKernelGetParamInfo(w.kernel, 3, &offset, &bytes));
  SHOW(cuKernelGetAttribute(&number, odd<CUfunction_attribute>(), w.kernel, w.device));
  SHOW(cuKernelGetAttribute(&number, odd<CUfunction_attribute>(-1), w.kernel, w.device));
  SHOW(cuKernelGetAttribute(&number, CU_FUNC_ATTRIBUTE_NUM_REGS, w.kernel, 1000));
  SHOW(cuKernelSetAttribute(odd<CUfunction_attribute>(), 0, w.kernel, w.device));
  SHOW(cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_NUM_REGS, 0, w.kernel, w.device));
  SHOW(cuKernelSetCacheConfig(w.kernel, odd<CUfunc_cache>(), w.device));
  SHOW(cuFuncGetParamInfo(w.function, 0, &offset, &bytes));
  CUfunctionLoadingState state{};
  SHOW(cuFuncIsLoaded(&state, w.function));
  SHOW(cuFuncIsLoaded(&state, reinterpret_cast<CUfunction>(w.kernel)));
  SHOW(cuFuncIsLoaded(&state, nullptr));
  SHOW(cuFuncLoad(reinterpret_cast<CUfunction>(w.kernel)));
  SHOW(cuFuncLoad(nullptr));
  SHOW(cuFuncGetAttribute(&number, odd<CUfunction_attribute>(), w.function));
  SHOW(cuFuncGetAttribute(&number, odd<CUfunction_attribute>(-1), w.function));
  SHOW(cuFuncSetAttribute(w.function, odd<CUfunction_attribute>(), 0));
  SHOW(cuFuncSetAttribute(w.function, CU_FUNC_ATTRIBUTE_NUM_REGS, 0));
  SHOW(cuFuncSetAttribute(w.function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, -1));
  SHOW(cuFuncSetAttribute(w.function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 1 << 30));
  SHOW(cuFuncSetAttribute(w.function, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 101));
  SHOW(cuFuncSetAttribute(w.function, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, -2));
  SHOW(cuFuncSetCacheConfig(w.function, odd<CUfunc_cache>()));
  SHOW(cuFuncSetSharedMemConfig(w.function, odd<CUsharedconfig>()));
}

void linking(const World&) {
  const EmptyFile file;
  const char* const empty = file.path();
  std::string copy = kPtx;
  char* const ptx = copy.data();
  const size_t length = copy.size() + 1;
  char zeros[256] = {};
  void* image = nullptr;
  size_t bytes = 5;
  CUjit_option option = odd<CUjit_option>();
  void* nothing = nullptr;
  CUlinkState link = nullptr;
  SHOW(cuLinkCreate(1, &option, &nothing, &link));
  // A link may refuse every input after it has refused one.
  const auto fresh = [&] {
    if (link) CU(cuLinkDestroy(link));
    CU(cuLinkCreate(0, nullptr, nullptr, &link));
  };
  link = nullptr;
  fresh();
  SHOW(cuLinkAddData(link, odd<CUjitInputType>(), ptx, length, "a", 0, nullptr, nullptr));
  fresh();
  SHOW(cuLinkAddData(link, CU_JIT_INPUT_PTX, ptx, 0, "a", 0, nullptr, nullptr));
  fresh();
  SHOW(cuLinkAddData(link, CU_JIT_INPUT_PTX, ptx, length, "", 0, nullptr, nullptr));
  fresh();
  SHOW(cuLinkAddData(link, CU_JIT_INPUT_PTX, ptx, length, nullptr, 0, nullptr, nullptr));
  fresh();
  SHOW(cuLinkAddData(link, CU_JIT_INPUT_PTX, ptx, length, "a", 1, &option, &nothing));
  fresh();
  SHOW(cuLinkAddData(link, CU_JIT_INPUT_CUBIN, zeros, sizeof zeros, "a", 0, nullptr, nullptr));
  fresh();
  SHOW(cuLinkAddData(link, CU_JIT_INPUT_FATBINARY, zeros, sizeof zeros, "a", 0, nullptr, nullptr));
  fresh();
  SHOW(cuLinkAddData(link, CU_JIT_INPUT_OBJECT, zeros, sizeof zeros, "a", 0, nullptr, nullptr));
  fresh();
  SHOW(cuLinkAddData(link, CU_JIT_INPUT_LIBRARY, zeros, sizeof zeros, "a", 0, nullptr, nullptr));
  fresh();
  SHOW(cuLinkAddFile(link, CU_JIT_INPUT_PTX, "", 0, nullptr, nullptr));
  fresh();
  SHOW(cuLinkAddFile(link, CU_JIT_INPUT_PTX, "/nonexistent/file", 0, nullptr, nullptr));
  fresh();
  SHOW(cuLinkAddFile(link, CU_JIT_INPUT_PTX, "/", 0, nullptr, nullptr));
  fresh();
  SHOW(cuLinkAddFile(link, CU_JIT_INPUT_PTX, empty, 0, nullptr, nullptr));
  fresh();
  SHOW(cuLinkAddFile(link, CU_JIT_INPUT_CUBIN, empty, 0, nullptr, nullptr));
  fresh();
  SHOW(cuLinkAddFile(link, CU_JIT_INPUT_FATBINARY, empty, 0, nullptr, nullptr));
  fresh();
  SHOW(cuLinkAddFile(link, CU_JIT_INPUT_OBJECT, empty, 0, nullptr, nullptr));
  fresh();
  SHOW(cuLinkAddFile(link, CU_JIT_INPUT_LIBRARY, empty, 0, nullptr, nullptr));
  fresh();
  SHOW(cuLinkAddFile(link, odd<CUjitInputType>(), empty, 0, nullptr, nullptr));
  fresh();
  SHOW(cuLinkComplete(link, &image, &bytes));
  CU(cuLinkDestroy(link));
  SHOW(cuLinkDestroy(nullptr));
}

void launches(const World& w) {
  CUfunction f = w.function;
  CUstream s = w.stream;
  SHOW(cuLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, s, nullptr, nullptr));
  SHOW(cuLaunchKernel(f, 0, 1, 1, 1, 1, 1, 0, s, nullptr, nullptr));
  SHOW(cuLaunchKernel(f, 1, 1, 1, 0, 1, 1, 0, s, nullptr, nullptr));
  SHOW(cuLaunchKernel(f, 1, 1, 1, 1, 1, 0, 0, s, nullptr, nullptr));
  SHOW(cuLaunchKernel(f, 1, 1, 1, 2048, 1, 1, 0, s, nullptr, nullptr));
  SHOW(cuLaunchKernel(f, 1, 1, 1, 1, 1, 65, 0, s, nullptr, nullptr));
  SHOW(cuLaunchKernel(f, 1, 65536, 1, 1, 1, 1, 0, s, nullptr, nullptr));
  SHOW(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 1 << 20, s, nullptr, nullptr));
  SHOW(cuLaunchKernel(f, 0, 0, 0, 0, 0, 0, 0, s, nullptr, nullptr));
  SHOW(cuLaunchCooperativeKernel(f, 0, 1, 1, 1, 1, 1, 0, s, nullptr));
  SHOW(cuLaunchCooperativeKernel(f, 1 << 20, 1, 1, 1, 1, 1, 0, s, nullptr));
  CUlaunchConfig config{};
  SHOW(cuLaunchKernelEx(&config, f, nullptr, nullptr));
  config = {1, 1, 1, 1, 1, 1, 0, s, nullptr, 0};
  SHOW(cuLaunchKernelEx(&config, nullptr, nullptr, nullptr));
  CUlaunchAttribute attribute{};
  attribute.id = odd<CUlaunchAttributeID>();
  config.attrs = &attribute;
  SHOW(cuLaunchKernelEx(&config, f, nullptr, nullptr));
  config.numAttrs = 1;
  SHOW(cuLaunchKernelEx(&config, f, nullptr, nullptr));
  attribute.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
  SHOW(cuLaunchKernelEx(&config, f, nullptr, nullptr));
  attribute.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT;
  SHOW(cuLaunchKernelEx(&config, f, nullptr, nullptr));
  attribute.id = CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY;
  attribute.value.syncPolicy = odd<CUsynchronizationPolicy>();
  SHOW(cuLaunchKernelEx(&config, f, nullptr, nullptr));
  CUDA_LAUNCH_PARAMS several[1]{};
  SHOW(cuLaunchCooperativeKernelMultiDevice(several, 0, 0));
  SHOW(cuLaunchCooperativeKernelMultiDevice(several, 1, 0x10));
  SHOW(cuLaunchCooperativeKernelMultiDevice(several, 1, 0));
  SHOW(cuFuncSetBlockShape(f, 0, 1, 1));
  SHOW(cuFuncSetBlockShape(f, 2048, 1, 1));
  SHOW(cuFuncSetSharedSize(f, 1 << 20));
  SHOW(cuParamSetSize(f, 1 << 20));
  SHOW(cuLaunchGrid(f, 0, 1));
  SHOW(cuLaunchGrid(f, 1, 0));
  int blocks = 5, block = 5;
  size_t bytes = 5;
  SHOW(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, f, 0, 0));
  SHOW(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, f, -1, 0));
  SHOW(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, f, 2048, 0));
  VALUE(blocks);
  SHOW(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, f, 32, 1 << 20));
  VALUE(blocks);
  SHOW(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, nullptr, 32, 0));
  SHOW(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(&blocks, f, 32, 0, 0x100));
  SHOW(cuOccupancyMaxPotentialBlockSizeWithFlags(&blocks, &block, f, nullptr, 0, 0, 0x100));
  SHOW(cuOccupancyMaxPotentialBlockSize(&blocks, &block, f, nullptr, 0, -1));
  SHOW(cuOccupancyAvailableDynamicSMemPerBlock(&bytes, f, 0, 32));
  SHOW(cuOccupancyAvailableDynamicSMemPerBlock(&bytes, f, 1, 0));
  SHOW(cuOccupancyAvailableDynamicSMemPerBlock(&bytes, f, 1, 2048));
  CUlaunchConfig shape{};
  SHOW(cuOccupancyMaxActiveClusters(&blocks, f, &shape));
  SHOW(cuOccupancyMaxPotentialClusterSize(&blocks, f, &shape));
}
