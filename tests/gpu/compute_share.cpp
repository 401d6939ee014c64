// Shows which kernels a green context confines to a part of a GPU's multiprocessors, on the
// installed driver. The server's compute share depends on this (docs/quotas.md, "Compute share").
//
//   compute_share places [PERCENT]         where kernels run, by kind of launch
//   compute_share rate SECONDS [PERCENT]   kernels per second, of 2112 blocks
//   compute_share fault                    a kernel that writes to a wrong address
//   compute_share hang                     a kernel that never ends; prints "running"
//
// PERCENT: the part of the multiprocessors for the green context; 100: no green context. "places"
// prints one line per kind of launch: the number of multiprocessors on which blocks ran, or the
// driver's error. The other commands are for several processes at the same time, with and without
// MPS. Needs a GPU. Exit status: 0, or 2 without a result.
#include "tests/gpu/compute_share.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include <cuda.h>

namespace {

using namespace compute_share;  // NOLINT: the other part of this program

constexpr unsigned kRateBlocks = 132 * 16;

int rate(CUdevice device, double seconds, unsigned percent) {
  CUcontext context = nullptr;
  must(cu.cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
  cu.cuCtxSetCurrent(context);
  Share share;
  if (percent < 100) {
    must(make_share(device, percent, &share), "green context");
    context = share.context;
  }
  cu.cuCtxSetCurrent(context);
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  CUdeviceptr flags = 0;
  must(cu.cuModuleLoadData(&module, kPtx), "cuModuleLoadData");
  must(cu.cuModuleGetFunction(&function, module, "where"), "where");
  must(cu.cuMemAlloc_v2(&flags, kMostSms * 4), "cuMemAlloc");
  uint64_t spin = 100'000;
  void* parameters[] = {&flags, &spin};
  long done = 0;
  const Clock::time_point begin = Clock::now();
  while (ms_since(begin) < seconds * 1000) {
    for (int i = 0; i < 8; ++i, ++done) {
      must(cu.cuLaunchKernel(function, kRateBlocks, 1, 1, 256, 1, 1, 0, nullptr, parameters,
                             nullptr),
           "cuLaunchKernel");
    }
    must(cu.cuCtxSynchronize(), "cuCtxSynchronize");
  }
  std::printf("%3u %%: %.0f kernels per second\n", percent,
              static_cast<double>(done) * 1000 / ms_since(begin));
  return 0;
}

// Runs a kernel that faults or never ends, to show the effect on other processes.
int go_wrong(CUdevice device, bool hangs) {
  CUcontext context = nullptr;
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  must(cu.cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
  cu.cuCtxSetCurrent(context);
  must(cu.cuModuleLoadData(&module, kPtx), "cuModuleLoadData");
  must(cu.cuModuleGetFunction(&function, module, "slow"), "slow");
  CUdeviceptr wrong = 16;
  uint64_t spin = hangs ? UINT64_MAX : 0;
  void* parameters[] = {&wrong, &spin};
  must(cu.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr),
       "cuLaunchKernel");
  if (hangs) {
    std::printf("running\n");
    std::fflush(stdout);
  }
  std::printf("%s\n", name_of(cu.cuCtxSynchronize()).c_str());
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  const std::string what = count > 1 ? arguments[1] : "";
  const rcuda::Status loaded = rcuda::api::load(&cu, "libcuda.so.1");
  if (!loaded.ok() || (what != "places" && what != "rate" && what != "fault" && what != "hang")) {
    std::fprintf(stderr,
                 "compute_share places [PERCENT] | rate SECONDS [PERCENT] | fault | hang: %s\n",
                 loaded.message().c_str());
    return 2;
  }
  must(cu.cuInit(0), "cuInit");
  CUdevice device = 0;
  must(cu.cuDeviceGet(&device, 0), "cuDeviceGet");
  const auto number = [&](int at, const char* otherwise) {
    return std::atof(count > at ? arguments[at] : otherwise);
  };
  if (what == "fault" || what == "hang") return go_wrong(device, what == "hang");
  if (what == "rate") {
    return rate(device, number(2, "3"), static_cast<unsigned>(number(3, "100")));
  }
  compute_share::print_places(device, static_cast<unsigned>(number(2, "25")));
  return 0;
}
