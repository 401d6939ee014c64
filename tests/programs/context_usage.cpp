// The usage count of contexts, as old programs use it: cuCtxAttach and cuCtxDetach.
#include <cstdio>
#include <thread>

#include <cuda.h>

#include "driver_checks.h"

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

namespace {

CUcontext current() {
  CUcontext context;
  CU(cuCtxGetCurrent(&context));
  return context;
}

bool allocates() {
  CUdeviceptr memory;
  return cuMemAlloc(&memory, 4096) == CUDA_SUCCESS;
}

void invalid_arguments() {
  CUcontext context = nullptr;
  EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuCtxAttach(&context, 0));
  EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuCtxDetach(nullptr));
  CU(cuCtxCreate_v4(&context, nullptr, 0, 0));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuCtxAttach(&context, 1));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuCtxAttach(nullptr, 0));
  CU(cuCtxDestroy(context));
  std::printf("invalid arguments: refused\n");
}

void only_the_current_context_is_detached() {
  CUcontext below, made;
  CU(cuCtxCreate_v4(&below, nullptr, 0, 0));
  CU(cuCtxCreate_v4(&made, nullptr, 0, 0));
  EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuCtxDetach(below));
  CU(cuCtxSetCurrent(nullptr));
  EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuCtxDetach(made));
  CU(cuCtxDestroy(made));
  CU(cuCtxDestroy(below));
  CU(cuCtxSetCurrent(nullptr));
  std::printf("another context: not detached\n");
}

void destroying_asks_for_no_count() {
  CUcontext made, attached;
  CU(cuCtxCreate_v4(&made, nullptr, 0, 0));
  CU(cuCtxAttach(&attached, 0));
  CU(cuCtxDestroy(made));
  CHECK(current() == nullptr && !allocates());
  EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuCtxDetach(made));
  std::printf("destroying: asks for no count\n");
}

// A destroyed context stays current in other threads, and in its second place on the stack.
void a_destroyed_context_stays_current_elsewhere() {
  CUcontext made, popped = nullptr;
  CU(cuCtxCreate_v4(&made, nullptr, 0, 0));
  std::thread([made] {
    CUcontext attached;
    CU(cuCtxSetCurrent(made));
    CU(cuCtxAttach(&attached, 0));
    CU(cuCtxDetach(made));
    CU(cuCtxDetach(made));
    CHECK(current() == nullptr);
  }).join();
  CHECK(current() == made);
  EXPECT(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuCtxDetach(made));
  CU(cuCtxPopCurrent(&popped));
  std::printf("elsewhere: still current, and destroyed\n");
}

void a_primary_context_has_no_count() {
  CUcontext primary, attached = nullptr;
  CU(cuDevicePrimaryCtxRetain(&primary, 0));
  CU(cuCtxSetCurrent(primary));
  CU(cuCtxAttach(&attached, 0));
  CHECK(attached == primary);
  for (int i = 0; i < 3; ++i) CU(cuCtxDetach(primary));
  CHECK(allocates());
  CU(cuDevicePrimaryCtxRelease(0));
  EXPECT(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuCtxAttach(&attached, 0));
  EXPECT(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuCtxDetach(primary));
  CU(cuCtxSetCurrent(nullptr));
  std::printf("a primary context: has no count\n");
}

void a_green_context_stands_for_its_primary_one() {
  CUcontext primary, inside, attached = nullptr;
  CU(cuDevicePrimaryCtxRetain(&primary, 0));
  CUdevResource all;
  CUdevResourceDesc description;
  CUgreenCtx green;
  CU(cuDeviceGetDevResource(0, &all, CU_DEV_RESOURCE_TYPE_SM));
  CU(cuDevResourceGenerateDesc(&description, &all, 1));
  CU(cuGreenCtxCreate(&green, description, 0, CU_GREEN_CTX_DEFAULT_STREAM));
  CU(cuCtxFromGreenCtx(&inside, green));
  CU(cuCtxSetCurrent(inside));
  CU(cuCtxAttach(&attached, 0));
  CHECK(attached != inside);
  EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuCtxDetach(inside));
  CU(cuGreenCtxDestroy(green));
  CU(cuCtxSetCurrent(nullptr));
  CU(cuDevicePrimaryCtxRelease(0));
  std::printf("a green context: another one is attached\n");
}

void the_last_detach_destroys() {
  CUcontext made, attached = nullptr;
  CU(cuCtxCreate_v4(&made, nullptr, 0, 0));
  CU(cuCtxAttach(&attached, 0));
  CHECK(attached == made);
  CU(cuCtxDetach(made));
  CHECK(current() == made && allocates());
  CU(cuCtxDetach(made));
  CHECK(current() == nullptr && !allocates());
  std::printf("the last detach: destroys\n");
}

}  // namespace

int main() {
  CU(cuInit(0));
  invalid_arguments();
  the_last_detach_destroys();
  only_the_current_context_is_detached();
  destroying_asks_for_no_count();
  a_destroyed_context_stays_current_elsewhere();
  a_primary_context_has_no_count();
  a_green_context_stands_for_its_primary_one();
  return 0;
}
