// Makes one kind of CUDA call many times. frames_test.py counts the commands and answers.
//
//   frames NAME COUNT
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "program.h"

__device__ int variable;

__global__ void empty() {}

struct Place {
  int bytes;
  char* memory;
};
__global__ void get_place(Place) {}
__global__ void get_pointer(char*) {}

// Page-locked memory of 128 KB, whose address a kernel has received. Each call writes to it.
char* written(const std::function<void(char*)>& give_to_kernel) {
  static char* memory = nullptr;
  if (!memory) {
    CUDA(cudaMallocHost(&memory, 128 << 10));
    give_to_kernel(memory);
  }
  ++*memory;
  return memory;
}

// Mapped memory, made by the first call.
void* mapped_memory() {
  static void* const memory = [] {
    void* made;
    CUDA(cudaHostAlloc(&made, 64, cudaHostAllocMapped));
    return made;
  }();
  return memory;
}

// A configuration with one block and one attribute. The value of the attribute is 1; the unused
// bytes of the attribute differ in each call.
cudaLaunchConfig_t with_attribute(cudaLaunchAttributeID id) {
  static cudaLaunchAttribute attribute;
  static unsigned char garbage = 0;
  std::memset(&attribute, ++garbage, sizeof attribute);
  const int one = 1;
  attribute.id = id;
  std::memcpy(&attribute.val, &one, sizeof one);
  cudaLaunchConfig_t config{};
  config.gridDim = config.blockDim = 1;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return config;
}

// Loads an image with this number of kernels, and unloads it. For each `number`, the image differs.
void load_kernels(int kernels, int number) {
  std::string text = ".version 8.0\n.target sm_75\n.address_size 64\n";
  for (int i = 1; i <= kernels; ++i) {
    text += ".visible .entry kernel" + std::to_string(i) + "() { ret; }\n";
  }
  text += "// " + std::to_string(number) + "\n";
  cudaLibrary_t library;
  cudaKernel_t kernel;
  CUDA(cudaLibraryLoadData(&library, text.c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0));
  CUDA(cudaLibraryGetKernel(&kernel, library, "kernel1"));
  CUDA(cudaLibraryUnload(library));
}

int main(int argc, char** argv) {
  CHECK(argc == 3);
  cudaStream_t stream;
  cudaEvent_t event;
  char *device, *pinned, pageable[64] = {};
  CUDA(cudaStreamCreate(&stream));
  CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  CUDA(cudaMalloc(&device, 4 << 20));
  CUDA(cudaMallocHost(&pinned, 4 << 20));
  std::memset(pinned, 1, 4 << 20);
  empty<<<1, 1, 0, stream>>>();
  CUDA(cudaEventRecord(event, stream));
  CUDA(cudaDeviceSynchronize());
  CUDA(cudaEventQuery(event));

  const auto up = cudaMemcpyHostToDevice, down = cudaMemcpyDeviceToHost;
  const std::map<std::string, std::function<void()>> calls = {
      {"launch", [&] { empty<<<1, 1, 0, stream>>>(); }},
      {"launch_in_structure",
       [] {
         get_place<<<1, 1>>>({1, written([](char*) {})});
       }},
      {"launch_beside_structure",
       [] {
         written([](char* memory) { get_place<<<1, 1>>>({1, memory}); });
         empty<<<1, 1>>>();
       }},
      {"launch_beside_pointer",
       [] {
         written([](char* memory) { get_pointer<<<1, 1>>>(memory); });
         empty<<<1, 1>>>();
       }},
      {"record", [&] { CUDA(cudaEventRecord(event, stream)); }},
      {"wait_event", [&] { CUDA(cudaStreamWaitEvent(stream, event)); }},
      {"query_done", [&] { CUDA(cudaEventQuery(event)); }},
      {"query_done_beside_mapped",
       [&, first = true]() mutable {
         if (std::exchange(first, false)) {
           CHECK(mapped_memory());
           empty<<<1, 1, 0, stream>>>();
           CUDA(cudaEventRecord(event, stream));
           CUDA(cudaStreamSynchronize(stream));
         }
         CUDA(cudaEventQuery(event));
       }},
      {"memset", [&] { CUDA(cudaMemsetAsync(device, 0, 64, stream)); }},
      {"create_event",
       [] {
         cudaEvent_t other;
         CUDA(cudaEventCreate(&other));
         CUDA(cudaEventDestroy(other));
       }},
      {"pinned_up_async", [&] { CUDA(cudaMemcpyAsync(device, pinned, 64, up, stream)); }},
      {"pinned_up_async_4m", [&] { CUDA(cudaMemcpyAsync(device, pinned, 4 << 20, up, stream)); }},
      {"pinned_down_async", [&] { CUDA(cudaMemcpyAsync(pinned, device, 64, down, stream)); }},
      {"pageable_up", [&] { CUDA(cudaMemcpy(device, pageable, 4, up)); }},
      {"symbol_up", [&] { CUDA(cudaMemcpyToSymbol(variable, pageable, sizeof variable)); }},
      {"pageable_down", [&] { CUDA(cudaMemcpy(pageable, device, 4, down)); }},
      {"pageable_down_synchronize",
       [&] {
         CUDA(cudaMemcpyAsync(pageable, device, 4, down, stream));
         CUDA(cudaStreamSynchronize(stream));
         CUDA(cudaMemcpyAsync(pageable, device, 4, down, nullptr));
         CUDA(cudaStreamSynchronize(nullptr));
       }},
      {"pinned_up", [&] { CUDA(cudaMemcpy(device, pinned, 4, up)); }},
      {"pinned_up_1m", [&] { CUDA(cudaMemcpy(device, pinned, 1 << 20, up)); }},
      {"pinned_down", [&] { CUDA(cudaMemcpy(pinned, device, 4, down)); }},
      {"pinned_down_64k", [&] { CUDA(cudaMemcpy(pinned, device, 64 << 10, down)); }},
      {"memset_pinned_up_beside_mapped",
       [&] {
         CHECK(mapped_memory());
         CUDA(cudaMemsetAsync(device, 0, 64, nullptr));
         CUDA(cudaMemcpy(device, pinned, 4, up));
       }},
      {"memset_synchronize",
       [&] {
         CUDA(cudaMemsetAsync(device, 0, 64, stream));
         CUDA(cudaStreamSynchronize(stream));
       }},
      {"synchronize", [&] { CUDA(cudaStreamSynchronize(stream)); }},
      {"synchronize_device", [] { CUDA(cudaDeviceSynchronize()); }},
      {"load_new_kernel", [loaded = 0]() mutable { load_kernels(1, ++loaded); }},
      {"load_kernel_again", [] { load_kernels(1, 0); }},
      {"load_new_and_known_kernel",
       [loaded = 0]() mutable {
         load_kernels(1, ++loaded);
         load_kernels(1, 0);
       }},
      {"load_one_of_three", [] { load_kernels(3, 0); }},
      {"load_one_of_many", [] { load_kernels(9, 0); }},
      {"active_clusters",
       [] {
         cudaLaunchConfig_t config{};
         config.gridDim = config.blockDim = 1;
         int clusters;
         CUDA(cudaOccupancyMaxActiveClusters(&clusters, empty, &config));
       }},
      {"active_clusters_with_attributes",
       [&] {
         const cudaLaunchConfig_t config = with_attribute(cudaLaunchAttributePriority);
         int clusters;
         CUDA(cudaOccupancyMaxActiveClusters(&clusters, empty, &config));
       }},
      {"launch_with_attributes",
       [&] {
         const cudaLaunchConfig_t config =
             with_attribute(cudaLaunchAttributeProgrammaticStreamSerialization);
         CUDA(cudaLaunchKernelEx(&config, empty));
       }},
      {"allocate",
       [] {
         void* memory;
         CUDA(cudaMalloc(&memory, 4096));
         CUDA(cudaFree(memory));
       }},
  };
  const auto found = calls.find(argv[1]);
  CHECK(found != calls.end());
  for (int i = std::atoi(argv[2]); i > 0; --i) found->second();
  CUDA(cudaGetLastError());
  CUDA(cudaDeviceSynchronize());  // else the counts would depend on how far the copies are
}
