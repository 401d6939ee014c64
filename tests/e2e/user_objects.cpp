// User objects of a graph and of its clones. Each of these graphs has its own references.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include <cuda.h>

namespace {

void check(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  std::fprintf(stderr, "%s: CUDA error %d\n", what, result);
  std::exit(1);
}
#define CU(call) check(call, #call)

void expect(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "not so: %s\n", what);
  std::exit(1);
}
#define EXPECT(condition) expect(condition, #condition)

std::atomic<int> ended{0};
void CUDA_CB end(void*) { ++ended; }
void CUDA_CB nothing(void*) {}

// Makes an object with two references, both of which the graph has.
CUuserObject object_of(CUgraph graph) {
  CUuserObject object;
  CU(cuUserObjectCreate(&object, nullptr, end, 2, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
  CU(cuGraphRetainUserObject(graph, object, 2, CU_GRAPH_USER_OBJECT_MOVE));
  return object;
}

}  // namespace

int main() {
  CUdevice device;
  CUcontext context;
  CUgraph graph, clone, again;
  CU(cuInit(0));
  CU(cuDeviceGet(&device, 0));
  CU(cuDevicePrimaryCtxRetain(&context, device));
  CU(cuCtxSetCurrent(context));

  CU(cuGraphCreate(&graph, 0));
  const CUuserObject object = object_of(graph);
  CU(cuGraphClone(&clone, graph));
  CU(cuGraphReleaseUserObject(graph, object, 1));
  CU(cuGraphClone(&again, graph));
  // The graph and `again` have one reference each, the clone has two.
  CU(cuGraphReleaseUserObject(clone, object, 1));
  CU(cuGraphDestroy(graph));
  CU(cuGraphReleaseUserObject(again, object, 1));
  CU(cuGraphDestroy(again));
  // If the object had ended, its function would have run before this one.
  CU(cuLaunchHostFunc(nullptr, nothing, nullptr));
  CU(cuStreamSynchronize(nullptr));
  EXPECT(ended == 0);
  CU(cuGraphReleaseUserObject(clone, object, 1));
  // If the function is not called, CTest ends this loop.
  while (ended == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT(ended == 1);
  CU(cuGraphDestroy(clone));
  std::puts("ok");
}
