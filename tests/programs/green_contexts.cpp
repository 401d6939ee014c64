// Green contexts: parts of a device's multiprocessors, each with its own streams. Memory, code and
// events belong to the primary context, even if a green context is current.
#include <cstdio>
#include <cstring>
#include <initializer_list>

#include <cuda.h>

#include "driver_checks.h"

namespace {

const char kCode[] = R"(
.version 6.3
.target sm_75
.address_size 64
.visible .entry store(.param .u64 pointer, .param .u32 number) {
  .reg .b64 %address;
  .reg .b32 %value;
  ld.param.u64 %address, [pointer];
  cvta.to.global.u64 %address, %address;
  ld.param.u32 %value, [number];
  st.global.u32 [%address], %value;
  ret;
}
)";

unsigned count_of(const CUdevResource& resource) { return resource.sm.smCount; }

CUdevResource whole_device() {
  CUdevResource resource;
  CU(cuDeviceGetDevResource(0, &resource, CU_DEV_RESOURCE_TYPE_SM));
  return resource;
}

// Launches one block that writes `number`, and reads the number back in the current context.
void store(CUfunction function, CUdeviceptr memory, unsigned number, CUstream stream) {
  void* parameters[] = {&memory, &number};
  CU(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr));
}

void expect_stored(CUdeviceptr memory, unsigned number) {
  unsigned stored = 0;
  CU(cuMemcpyDtoH(&stored, memory, sizeof stored));
  CHECK(stored == number);
}

void resources(CUcontext primary) {
  const CUdevResource all = whole_device();
  int multiprocessors = 0;
  CU(cuDeviceGetAttribute(&multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0));
  CHECK(all.type == CU_DEV_RESOURCE_TYPE_SM);
  CHECK(count_of(all) == static_cast<unsigned>(multiprocessors));
  CHECK(all.sm.minSmPartitionSize > 0 && all.sm.smCoscheduledAlignment > 0);
  CUdevResource other;
  CU(cuCtxGetDevResource(primary, &other, CU_DEV_RESOURCE_TYPE_SM));
  CHECK(count_of(other) == count_of(all));
  for (int type : {0, 2, 1000}) {
    EXPECT(CUDA_ERROR_INVALID_RESOURCE_TYPE,
           cuDeviceGetDevResource(0, &other, static_cast<CUdevResourceType>(type)));
  }
  EXPECT(CUDA_ERROR_INVALID_DEVICE, cuDeviceGetDevResource(99, &other, CU_DEV_RESOURCE_TYPE_SM));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuDeviceGetDevResource(0, nullptr, CU_DEV_RESOURCE_TYPE_SM));
  EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuCtxGetDevResource(nullptr, &other, CU_DEV_RESOURCE_TYPE_SM));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuCtxGetDevResource(primary, nullptr, CU_DEV_RESOURCE_TYPE_SM));
  std::printf("resources: the whole device\n");
}

void splits() {
  const CUdevResource all = whole_device();
  CUdevResource groups[2], remaining;
  unsigned count = 0;
  CU(cuDevSmResourceSplitByCount(nullptr, &count, &all, nullptr, 0, 8));
  CHECK(count >= 2);
  count = 2;
  CU(cuDevSmResourceSplitByCount(groups, &count, &all, &remaining, 0, 8));
  CHECK(count == 2 && count_of(groups[0]) >= 8 && count_of(groups[0]) == count_of(groups[1]));
  CHECK(count_of(remaining) == count_of(all) - 2 * count_of(groups[0]));
  count = 1;
  CU(cuDevSmResourceSplitByCount(groups, &count, &all, nullptr, 0, 0));  // the smallest groups
  CHECK(count == 1 && count_of(groups[0]) <= 8);
  CU(cuDevSmResourceSplitByCount(groups, &count, &all, &remaining, 0, count_of(all)));
  CHECK(count == 1 && count_of(groups[0]) == count_of(all));
  CHECK(remaining.type == CU_DEV_RESOURCE_TYPE_INVALID);
  count = 2;
  EXPECT(CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION,
         cuDevSmResourceSplitByCount(groups, &count, &all, &remaining, 0, count_of(all) + 1));
  CHECK(count == 2);
  EXPECT(CUDA_ERROR_INVALID_VALUE,
         cuDevSmResourceSplitByCount(groups, nullptr, &all, &remaining, 0, 8));
  EXPECT(CUDA_ERROR_INVALID_VALUE,
         cuDevSmResourceSplitByCount(groups, &count, nullptr, &remaining, 0, 8));
  count = 0;
  EXPECT(CUDA_ERROR_INVALID_VALUE,
         cuDevSmResourceSplitByCount(groups, &count, &all, &remaining, 0, 8));
  count = 2;
  CUdevResource made_up{};
  EXPECT(CUDA_ERROR_INVALID_RESOURCE_TYPE,
         cuDevSmResourceSplitByCount(groups, &count, &made_up, &remaining, 0, 8));
  made_up.type = CU_DEV_RESOURCE_TYPE_SM;
  made_up.sm.smCount = 16;
  EXPECT(CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION,
         cuDevSmResourceSplitByCount(groups, &count, &made_up, &remaining, 0, 8));
  CUdevResource changed = all;
  changed.sm.smCount -= 8;
  EXPECT(CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION,
         cuDevSmResourceSplitByCount(groups, &count, &changed, &remaining, 0, 8));
  // A part cannot be split again, but the resource of its green context can.
  CU(cuDevSmResourceSplitByCount(groups, &count, &all, &remaining, 0, 16));
  const CUdevResource part = groups[0];
  EXPECT(CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION,
         cuDevSmResourceSplitByCount(groups, &count, &part, &remaining, 0, 8));
  std::printf("splits: groups and the rest\n");
}

// A green context of sixteen multiprocessors.
CUgreenCtx make_green(unsigned* multiprocessors) {
  const CUdevResource all = whole_device();
  CUdevResource group, remaining;
  unsigned count = 1;
  CU(cuDevSmResourceSplitByCount(&group, &count, &all, &remaining, 0, 16));
  *multiprocessors = count_of(group);
  CUdevResourceDesc desc;
  CU(cuDevResourceGenerateDesc(&desc, &group, 1));
  CUgreenCtx green;
  CU(cuGreenCtxCreate(&green, desc, 0, CU_GREEN_CTX_DEFAULT_STREAM));
  return green;
}

void creation(CUcontext primary) {
  const CUdevResource all = whole_device();
  CUdevResource groups[2], remaining;
  unsigned count = 2;
  CU(cuDevSmResourceSplitByCount(groups, &count, &all, &remaining, 0, 16));
  CUdevResourceDesc desc, both;
  CU(cuDevResourceGenerateDesc(&desc, groups, 1));
  CU(cuDevResourceGenerateDesc(&both, groups, 2));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuDevResourceGenerateDesc(nullptr, groups, 1));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuDevResourceGenerateDesc(&desc, nullptr, 1));
  CUdevResource none{};
  CUdevResourceDesc unused;
  EXPECT(CUDA_ERROR_INVALID_RESOURCE_TYPE, cuDevResourceGenerateDesc(&unused, &none, 1));
  none.type = CU_DEV_RESOURCE_TYPE_SM;
  none.sm.smCount = 8;
  EXPECT(CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION, cuDevResourceGenerateDesc(&unused, &none, 1));

  CUgreenCtx green, twin, wide;
  for (unsigned flags : {0u, 2u, 3u}) {
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGreenCtxCreate(&green, desc, 0, flags));
  }
  EXPECT(CUDA_ERROR_INVALID_DEVICE, cuGreenCtxCreate(&green, desc, 99, 1));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuGreenCtxCreate(nullptr, desc, 0, 1));
  CU(cuGreenCtxCreate(&green, desc, 0, 1));
  CU(cuGreenCtxCreate(&twin, desc, 0, 1));
  CU(cuGreenCtxCreate(&wide, both, 0, 1));
  CUcontext current;
  CU(cuCtxGetCurrent(&current));
  CHECK(current == primary && green != twin);
  CUdevResource resource;
  CU(cuGreenCtxGetDevResource(green, &resource, CU_DEV_RESOURCE_TYPE_SM));
  CHECK(count_of(resource) == count_of(groups[0]));
  count = 2;
  CUdevResource parts[2];
  CU(cuDevSmResourceSplitByCount(parts, &count, &resource, nullptr, 0, 8));
  CHECK(count == 2);
  CU(cuGreenCtxGetDevResource(wide, &resource, CU_DEV_RESOURCE_TYPE_SM));
  CHECK(count_of(resource) == 2 * count_of(groups[0]));

  CUcontext context, again;
  CU(cuCtxFromGreenCtx(&context, green));
  CU(cuCtxFromGreenCtx(&again, green));
  CHECK(context == again && context != primary);
  unsigned long long id = 0, same = 0, other = 0;
  CU(cuGreenCtxGetId(green, &id));
  CU(cuCtxGetId(context, &same));
  CU(cuGreenCtxGetId(twin, &other));
  CHECK(id == same && id != other);
  CU(cuCtxGetDevResource(context, &resource, CU_DEV_RESOURCE_TYPE_SM));
  CHECK(count_of(resource) == count_of(groups[0]));
  EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuCtxDestroy(context));
  EXPECT(CUDA_ERROR_NOT_PERMITTED, cuDevicePrimaryCtxReset(0));

  EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuCtxFromGreenCtx(&context, nullptr));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuCtxFromGreenCtx(nullptr, green));
  EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuGreenCtxGetId(nullptr, &id));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuGreenCtxGetId(green, nullptr));
  EXPECT(CUDA_ERROR_INVALID_CONTEXT,
         cuGreenCtxGetDevResource(nullptr, &resource, CU_DEV_RESOURCE_TYPE_SM));
  EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuGreenCtxDestroy(nullptr));
  for (CUgreenCtx each : {green, twin, wide}) CU(cuGreenCtxDestroy(each));
  std::printf("creation: three contexts\n");
}

void streams(CUcontext primary, CUfunction function) {
  unsigned multiprocessors;
  const CUgreenCtx green = make_green(&multiprocessors);
  CUcontext context;
  CU(cuCtxFromGreenCtx(&context, green));
  CUstream stream, made;
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuGreenCtxStreamCreate(&stream, green, 0, 0));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuGreenCtxStreamCreate(nullptr, green, 1, 0));
  EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuGreenCtxStreamCreate(&stream, nullptr, 1, 0));
  CU(cuGreenCtxStreamCreate(&stream, green, CU_STREAM_NON_BLOCKING, 0));
  CU(cuCtxSetCurrent(context));
  CU(cuStreamCreate(&made, 0));
  unsigned flags = 0;
  CU(cuStreamGetFlags(made, &flags));
  CHECK(flags == CU_STREAM_NON_BLOCKING);
  for (CUstream each : {stream, made, CUstream(nullptr)}) {
    CUgreenCtx of = nullptr;
    CUcontext owner = nullptr;
    CU(cuStreamGetGreenCtx(each, &of));
    CHECK(of == green);
    CU(cuStreamGetCtx(each, &owner));
    CHECK(owner == context);
    of = nullptr;
    CU(cuStreamGetCtx_v2(each, &owner, &of));
    CHECK(owner == primary && of == green);
  }
  CUgreenCtx of;
  EXPECT(CUDA_ERROR_INVALID_HANDLE, cuStreamGetGreenCtx(CU_STREAM_PER_THREAD, &of));

  // Kernels of the primary context work in all streams.
  CUdeviceptr memory;
  CU(cuMemAlloc(&memory, 64));
  CUcontext owner;
  CU(cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, memory));
  CHECK(owner == primary);
  store(function, memory, 1, nullptr);
  CU(cuCtxSynchronize());
  expect_stored(memory, 1);
  store(function, memory, 2, stream);
  CU(cuStreamSynchronize(stream));
  expect_stored(memory, 2);
  CU(cuMemsetD32Async(memory, 3, 1, made));
  CU(cuCtxSetCurrent(primary));
  CU(cuCtxSynchronize());  // also waits for the green contexts
  expect_stored(memory, 3);
  store(function, memory, 4, stream);
  CU(cuStreamSynchronize(stream));
  expect_stored(memory, 4);

  // A cooperative launch uses the multiprocessors of the stream's context.
  int blocks = 0;
  CU(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, 256, 0));
  unsigned number = 5;
  void* parameters[] = {&memory, &number};
  const unsigned most = static_cast<unsigned>(blocks) * multiprocessors;
  CU(cuLaunchCooperativeKernel(function, most, 1, 1, 256, 1, 1, 0, stream, parameters));
  EXPECT(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE,
         cuLaunchCooperativeKernel(function, most + 1, 1, 1, 256, 1, 1, 0, stream, parameters));
  CU(cuStreamSynchronize(stream));
  expect_stored(memory, 5);
  CU(cuMemFree(memory));
  CU(cuStreamDestroy(stream));
  CU(cuGreenCtxDestroy(green));
  std::printf("streams: in a green context\n");
}

void events(CUcontext primary, CUfunction function) {
  unsigned multiprocessors;
  const CUgreenCtx green = make_green(&multiprocessors), other = make_green(&multiprocessors);
  CUstream stream, waiting;
  CU(cuGreenCtxStreamCreate(&stream, green, CU_STREAM_NON_BLOCKING, 0));
  CU(cuGreenCtxStreamCreate(&waiting, other, CU_STREAM_NON_BLOCKING, 0));
  CUcontext context;
  CU(cuCtxFromGreenCtx(&context, green));
  CUevent of_green, of_primary;
  CU(cuEventCreate(&of_primary, 0));
  CU(cuCtxSetCurrent(context));
  CU(cuEventCreate(&of_green, 0));
  CU(cuCtxSetCurrent(primary));
  CUdeviceptr memory;
  CU(cuMemAlloc(&memory, 64));
  for (CUevent event : {of_green, of_primary}) {
    CU(cuEventRecord(event, nullptr));
    store(function, memory, 6, stream);
    CU(cuEventRecord(event, stream));
    CU(cuStreamWaitEvent(waiting, event, 0));
    store(function, memory, 7, waiting);
    CU(cuStreamSynchronize(waiting));
    expect_stored(memory, 7);
    CU(cuEventQuery(event));
    store(function, memory, 8, stream);
    CU(cuGreenCtxRecordEvent(green, event));
    CU(cuGreenCtxWaitEvent(other, event));
    store(function, memory, 9, waiting);
    CU(cuStreamSynchronize(waiting));
    expect_stored(memory, 9);
    CU(cuCtxRecordEvent(context, event));
    CU(cuCtxWaitEvent(context, event));
  }
  EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuGreenCtxRecordEvent(nullptr, of_green));
  EXPECT(CUDA_ERROR_INVALID_HANDLE, cuGreenCtxRecordEvent(green, nullptr));
  EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuGreenCtxWaitEvent(nullptr, of_green));
  EXPECT(CUDA_ERROR_INVALID_HANDLE, cuGreenCtxWaitEvent(green, nullptr));
  CU(cuGreenCtxDestroy(other));
  CU(cuGreenCtxDestroy(green));
  CU(cuEventQuery(of_green));  // it belongs to the primary context
  CU(cuEventDestroy(of_green));
  CU(cuEventDestroy(of_primary));
  CU(cuMemFree(memory));
  std::printf("events: between contexts\n");
}

// Objects made in a green context stay after its end.
void ends(CUcontext primary) {
  unsigned multiprocessors;
  const CUgreenCtx green = make_green(&multiprocessors);
  CUcontext context, current;
  CU(cuCtxFromGreenCtx(&context, green));
  CU(cuCtxSetCurrent(context));
  CUdeviceptr memory, more;
  CU(cuMemAlloc(&memory, 64));
  CUmodule module;
  CU(cuModuleLoadData(&module, kCode));
  CU(cuGreenCtxDestroy(green));
  CU(cuCtxGetCurrent(&current));
  CHECK(current == context);
  EXPECT(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuMemAlloc(&more, 64));
  EXPECT(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuCtxSynchronize());
  CU(cuCtxSetCurrent(primary));
  CUfunction function;
  CU(cuModuleGetFunction(&function, module, "store"));
  store(function, memory, 10, nullptr);
  expect_stored(memory, 10);
  CU(cuMemFree(memory));
  CU(cuModuleUnload(module));
  std::printf("ends: memory and code stay\n");
}

// A green context keeps the primary context active.
void primary_context() {
  unsigned flags;
  int active = 1;
  CU(cuDevicePrimaryCtxGetState(0, &flags, &active));
  CHECK(!active);
  unsigned multiprocessors;
  const CUgreenCtx green = make_green(&multiprocessors);
  CU(cuDevicePrimaryCtxGetState(0, &flags, &active));
  CHECK(active);
  CUcontext context;
  CU(cuCtxFromGreenCtx(&context, green));
  CU(cuCtxSetCurrent(context));
  CUdeviceptr memory;
  CU(cuMemAlloc(&memory, 64));
  CU(cuGreenCtxDestroy(green));
  CU(cuDevicePrimaryCtxGetState(0, &flags, &active));
  CHECK(!active);
  std::printf("the primary context: active with its green contexts\n");
}

}  // namespace

int main() {
  CUcontext primary;
  CU(cuInit(0));
  CU(cuDevicePrimaryCtxRetain(&primary, 0));
  CU(cuCtxSetCurrent(primary));
  CUmodule module;
  CUfunction function;
  CU(cuModuleLoadData(&module, kCode));
  CU(cuModuleGetFunction(&function, module, "store"));
  resources(primary);
  splits();
  creation(primary);
  streams(primary, function);
  events(primary, function);
  ends(primary);
  CU(cuCtxSetCurrent(nullptr));
  CU(cuDevicePrimaryCtxRelease(0));
  primary_context();
  return 0;
}
