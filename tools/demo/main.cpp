// The program of rcuda-run --demo: a CUDA program like any other. It uses the driver API, and its
// kernel is PTX, so it is built without nvcc. It contains no code for rcuda, but is linked to find
// libcuda.so.1 in its own folder.
//
// Each device computes a band of a picture of the Mandelbrot set. The bands are copied to the first
// device (between servers if the devices are on different servers), and from there to the host in
// one piece. The host compares the points with its own results. The exit status is 0 if all points
// agree.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <cuda.h>

#include "tools/demo/mandelbrot_ptx.h"

namespace {

constexpr uint32_t kWidth = 72, kRows = 24, kLimit = 400;
constexpr float kLeft = -2.2f, kTop = -1.2f, kStepX = 3.2f / kWidth, kStepY = 2.4f / kRows;

// A device, its band of the picture, and the device memory for the band.
struct Band {
  CUdevice device = 0;
  CUcontext context = nullptr;
  CUdeviceptr points = 0;
  uint32_t first_row = 0, rows = 0;
  std::string name;

  size_t bytes() const { return size_t{rows} * kWidth * sizeof(uint32_t); }
};

// Ends the program if a call failed.
void check(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  const char* name = nullptr;
  if (cuGetErrorName(result, &name) != CUDA_SUCCESS) name = "an unknown error";
  std::fprintf(stderr, "demo: %s failed: %s\n", what, name);
  std::exit(1);
}

std::vector<Band> divide_rows() {
  int devices = 0;
  check(cuInit(0), "cuInit");
  check(cuDeviceGetCount(&devices), "cuDeviceGetCount");
  std::vector<Band> bands(std::min(static_cast<uint32_t>(devices), kRows));
  const auto count = static_cast<uint32_t>(bands.size());
  for (uint32_t i = 0; i < count; ++i) {
    bands[i].first_row = i * kRows / count;
    bands[i].rows = (i + 1) * kRows / count - bands[i].first_row;
    char name[256] = "";
    check(cuDeviceGet(&bands[i].device, static_cast<int>(i)), "cuDeviceGet");
    check(cuDeviceGetName(name, sizeof name, bands[i].device), "cuDeviceGetName");
    bands[i].name = name;
  }
  return bands;
}

// Starts the kernel without waiting for it, so that the devices work at the same time.
void start(Band* band) {
  check(cuDevicePrimaryCtxRetain(&band->context, band->device), "cuDevicePrimaryCtxRetain");
  check(cuCtxSetCurrent(band->context), "cuCtxSetCurrent");
  CUmodule module = nullptr;
  CUfunction kernel = nullptr;
  check(cuModuleLoadData(&module, rcuda::demo::kMandelbrotPtx), "cuModuleLoadData");
  check(cuModuleGetFunction(&kernel, module, "mandelbrot"), "cuModuleGetFunction");
  check(cuMemAlloc(&band->points, band->bytes()), "cuMemAlloc");
  uint32_t width = kWidth, limit = kLimit;
  float left = kLeft, top = kTop, step_x = kStepX, step_y = kStepY;
  void* arguments[] = {&band->points, &width,  &band->rows, &band->first_row, &left, &top,
                       &step_x,       &step_y, &limit};
  constexpr uint32_t kThreads = 64;
  check(cuLaunchKernel(kernel, (kWidth * band->rows + kThreads - 1) / kThreads, 1, 1, kThreads, 1,
                       1, 0, nullptr, arguments, nullptr),
        "cuLaunchKernel");
}

// Returns the whole picture, gathered on the first device.
std::vector<uint32_t> gather(const std::vector<Band>& bands) {
  std::vector<uint32_t> picture(size_t{kWidth} * kRows);
  CUdeviceptr whole = 0;
  check(cuCtxSetCurrent(bands[0].context), "cuCtxSetCurrent");
  check(cuMemAlloc(&whole, picture.size() * sizeof(uint32_t)), "cuMemAlloc");
  for (const Band& band : bands) {
    const CUdeviceptr place = whole + band.first_row * kWidth * sizeof(uint32_t);
    check(cuMemcpyPeer(place, bands[0].context, band.points, band.context, band.bytes()),
          "cuMemcpyPeer");
  }
  check(cuMemcpyDtoH(picture.data(), whole, picture.size() * sizeof(uint32_t)), "cuMemcpyDtoH");
  return picture;
}

// Computes a point with the same operations as the kernel.
uint32_t steps_at(uint32_t column, uint32_t row) {
  const float cx = std::fma(static_cast<float>(column), kStepX, kLeft);
  const float cy = std::fma(static_cast<float>(row), kStepY, kTop);
  float re = 0, im = 0;
  for (uint32_t step = 0; step < kLimit; ++step) {
    const float next = std::fma(re, re, std::fma(-im, im, cx));
    im = std::fma(re + re, im, cy);
    re = next;
    if (std::fma(re, re, im * im) > 4) return step;
  }
  return kLimit;
}

// Prints the picture, with each device's name next to its first row. Returns the number of points
// that differ from the host's results.
int show(const std::vector<uint32_t>& picture, const std::vector<Band>& bands) {
  constexpr char kShades[] = " .,:;-=+*oO%#@";
  int wrong = 0;
  for (uint32_t row = 0; row < kRows; ++row) {
    std::string line;
    for (uint32_t column = 0; column < kWidth; ++column) {
      const uint32_t steps = picture[size_t{row} * kWidth + column];
      wrong += steps != steps_at(column, row);
      line += steps >= kLimit ? '@' : kShades[std::min<uint32_t>(steps / 2, sizeof kShades - 3)];
    }
    for (size_t i = 0; i < bands.size(); ++i) {
      if (bands[i].first_row == row) line += "  device " + std::to_string(i) + ": " + bands[i].name;
    }
    std::puts(line.c_str());
  }
  return wrong;
}

}  // namespace

int main() {
  std::vector<Band> bands = divide_rows();
  if (bands.empty()) {
    std::fputs("demo: the CUDA driver reports no device\n", stderr);
    return 1;
  }
  for (Band& band : bands) start(&band);
  const int wrong = show(gather(bands), bands);
  std::printf("%u points on %zu device%s, %d wrong\n", kWidth * kRows, bands.size(),
              bands.size() == 1 ? "" : "s", wrong);
  return wrong != 0;
}
