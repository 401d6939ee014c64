// Conditional nodes of graphs: if, if-else, while, switch and nested nodes; bodies made by hand and
// by capture; default values, clones, updates, and refused calls.
#include <type_traits>

#include <cuda.h>

#include "program.h"

namespace {

__global__ void decide(cudaGraphConditionalHandle handle, const unsigned* value) {
  cudaGraphSetConditional(handle, *value);
}

__global__ void add(int* sum, int value) { *sum += value; }

__global__ void count_down(cudaGraphConditionalHandle handle, int* left) {
  cudaGraphSetConditional(handle, --*left > 0);
}

__global__ void is_odd(cudaGraphConditionalHandle handle, const int* value) {
  cudaGraphSetConditional(handle, *value % 2);
}

template <typename... Parameters>
cudaGraphNode_t add_kernel(cudaGraph_t graph, cudaGraphNode_t after, void (*kernel)(Parameters...),
                           std::common_type_t<Parameters>... arguments) {
  void* pointers[] = {&arguments...};
  cudaGraphNodeParams params{};
  params.type = cudaGraphNodeTypeKernel;
  params.kernel.func = reinterpret_cast<void*>(kernel);
  params.kernel.gridDim = params.kernel.blockDim = dim3(1);
  params.kernel.kernelParams = pointers;
  cudaGraphNode_t node;
  CUDA(cudaGraphAddNode(&node, graph, after ? &after : nullptr, nullptr, after ? 1 : 0, &params));
  return node;
}

struct Conditional {
  cudaGraphNode_t node;
  std::vector<cudaGraph_t> bodies;
};

Conditional add_conditional(cudaGraph_t graph, cudaGraphNode_t after,
                            cudaGraphConditionalHandle handle, cudaGraphConditionalNodeType type,
                            unsigned size = 1) {
  cudaGraphNodeParams params{};
  params.type = cudaGraphNodeTypeConditional;
  params.conditional.handle = handle;
  params.conditional.type = type;
  params.conditional.size = size;
  Conditional made{};
  CUDA(cudaGraphAddNode(&made.node, graph, after ? &after : nullptr, nullptr, after ? 1 : 0,
                        &params));
  made.bodies.assign(params.conditional.phGraph_out, params.conditional.phGraph_out + size);
  return made;
}

cudaGraphConditionalHandle make_handle(cudaGraph_t graph, unsigned value = 0, unsigned flags = 0) {
  cudaGraphConditionalHandle handle;
  CUDA(cudaGraphConditionalHandleCreate(&handle, graph, value, flags));
  return handle;
}

cudaGraph_t make_graph() {
  cudaGraph_t graph;
  CUDA(cudaGraphCreate(&graph, 0));
  return graph;
}

struct Executable {
  explicit Executable(cudaGraph_t graph) { CUDA(cudaGraphInstantiate(&exec, graph, 0)); }
  ~Executable() { CUDA(cudaGraphExecDestroy(exec)); }
  void run() {
    CUDA(cudaGraphLaunch(exec, nullptr));
    CUDA(cudaDeviceSynchronize());
  }
  cudaGraphExec_t exec;
};

template <typename T>
T read(const DeviceArray<T>& array) {
  T value;
  CUDA(cudaMemcpy(&value, array.get(), sizeof value, cudaMemcpyDefault));
  return value;
}

template <typename T>
void write(DeviceArray<T>& array, T value) {
  CUDA(cudaMemcpy(array.get(), &value, sizeof value, cudaMemcpyDefault));
}

// One node with bodies that add 1, 10, 100, ... and a node after it that adds 1000000.
void decisions(const char* name, cudaGraphConditionalNodeType type, unsigned size,
               std::vector<unsigned> values) {
  DeviceArray<unsigned> value(1);
  DeviceArray<int> sum(1);
  cudaGraph_t graph = make_graph();
  const auto handle = make_handle(graph);
  const auto first = add_kernel(graph, nullptr, decide, handle, value.get());
  const Conditional conditional = add_conditional(graph, first, handle, type, size);
  int addend = 1;
  for (cudaGraph_t body : conditional.bodies) {
    add_kernel(body, nullptr, add, sum.get(), addend);
    addend *= 10;
  }
  add_kernel(graph, conditional.node, add, sum.get(), 1000000);
  Executable executable(graph);
  std::printf("%s:", name);
  for (const unsigned given : values) {
    write(value, given);
    write(sum, 0);
    executable.run();
    std::printf(" %u -> %d", given, read(sum));
  }
  std::printf("\n");
  CUDA(cudaGraphDestroy(graph));
}

void loop() {
  DeviceArray<int> left(1), sum(1);
  cudaGraph_t graph = make_graph();
  const auto handle = make_handle(graph, 1, cudaGraphCondAssignDefault);
  const Conditional loop = add_conditional(graph, nullptr, handle, cudaGraphCondTypeWhile);
  const auto added = add_kernel(loop.bodies[0], nullptr, add, sum.get(), 3);
  add_kernel(loop.bodies[0], added, count_down, handle, left.get());
  Executable executable(graph);
  std::printf("while:");
  for (const int times : {1, 7, 100}) {
    write(left, times);
    write(sum, 0);
    executable.run();
    std::printf(" %d -> %d", times, read(sum));
  }
  std::printf("\n");
  CUDA(cudaGraphDestroy(graph));
}

// Adds the odd numbers from `left` down to 1: an if within a while.
void nested() {
  DeviceArray<int> left(1), sum(1);
  cudaGraph_t graph = make_graph();
  const auto again = make_handle(graph, 1, cudaGraphCondAssignDefault);
  const Conditional loop = add_conditional(graph, nullptr, again, cudaGraphCondTypeWhile);
  const auto odd = make_handle(loop.bodies[0]);
  const auto tested = add_kernel(loop.bodies[0], nullptr, is_odd, odd, left.get());
  const Conditional choice = add_conditional(loop.bodies[0], tested, odd, cudaGraphCondTypeIf, 2);
  add_kernel(choice.bodies[0], nullptr, add, sum.get(), 1);
  add_kernel(choice.bodies[1], nullptr, add, sum.get(), 1000);
  add_kernel(loop.bodies[0], choice.node, count_down, again, left.get());
  Executable executable(graph);
  write(left, 9);
  write(sum, 0);
  for (int i = 0; i < 3; ++i) {
    executable.run();
    write(left, 9);
  }
  std::printf("an if within a while, three times: %d\n", read(sum));
  CUDA(cudaGraphDestroy(graph));
}

void defaults() {
  DeviceArray<int> sum(1);
  DeviceArray<unsigned> zero(1);
  zero.clear();
  for (const unsigned flags : {0u, unsigned{cudaGraphCondAssignDefault}}) {
    sum.clear();
    cudaGraph_t graph = make_graph();
    const auto handle = make_handle(graph, 1, flags);
    const Conditional conditional = add_conditional(graph, nullptr, handle, cudaGraphCondTypeIf);
    const auto added = add_kernel(conditional.bodies[0], nullptr, add, sum.get(), 1);
    add_kernel(conditional.bodies[0], added, decide, handle, zero.get());
    Executable executable(graph);
    for (int i = 0; i < 3; ++i) executable.run();
    if (flags) std::printf("default value at each launch: %d\n", read(sum));
    CUDA(cudaGraphDestroy(graph));
  }
}

// A body of copies and fills, made by capture.
void captured() {
  constexpr int kCount = 1000;
  DeviceArray<int> from(kCount), to(kCount);
  int *pinned, *back;
  CUDA(cudaMallocHost(&pinned, kCount * sizeof(int)));
  CUDA(cudaMallocHost(&back, kCount * sizeof(int)));
  for (int i = 0; i < kCount; ++i) pinned[i] = i;
  DeviceArray<unsigned> value(1);
  cudaStream_t stream;
  CUDA(cudaStreamCreate(&stream));
  cudaGraph_t graph = make_graph();
  const auto handle = make_handle(graph);
  const auto first = add_kernel(graph, nullptr, decide, handle, value.get());
  const Conditional conditional = add_conditional(graph, first, handle, cudaGraphCondTypeIf);
  CUDA(cudaStreamBeginCaptureToGraph(stream, conditional.bodies[0], nullptr, nullptr, 0,
                                     cudaStreamCaptureModeRelaxed));
  CUDA(cudaMemcpyAsync(from.get(), pinned, kCount * sizeof(int), cudaMemcpyDefault, stream));
  CUDA(cudaMemcpyAsync(to.get(), from.get(), kCount * sizeof(int), cudaMemcpyDefault, stream));
  CUDA(cudaMemsetAsync(from.get(), 0, kCount * sizeof(int), stream));
  add<<<1, 1, 0, stream>>>(to.get(), 5);
  CUDA(cudaMemcpyAsync(back, to.get(), kCount * sizeof(int), cudaMemcpyDefault, stream));
  cudaGraph_t body;
  CUDA(cudaStreamEndCapture(stream, &body));
  CHECK(body == conditional.bodies[0]);
  size_t count = 0;
  CUDA(cudaGraphGetNodes(body, nullptr, &count));
  cudaGraphNodeType type;
  CUDA(cudaGraphNodeGetType(conditional.node, &type));
  std::printf("captured: %zu nodes in the body, the node has type %d\n", count, type);
  Executable executable(graph);
  for (const unsigned given : {0u, 1u, 0u}) {
    to.clear();
    write(value, given);
    // A body that does not run must not change the host's memory either.
    for (int i = 0; i < kCount; ++i) back[i] = -i;
    executable.run();
    long long total = 0;
    for (const int one : to.values()) total += one;
    long long total_back = 0;
    for (int i = 0; i < kCount; ++i) total_back += back[i];
    std::printf("captured: %u -> %lld, on the host %lld\n", given, total, total_back);
  }
  CUDA(cudaGraphDestroy(graph));
  CUDA(cudaStreamDestroy(stream));
  CUDA(cudaFreeHost(pinned));
  CUDA(cudaFreeHost(back));
}

// An executable outlives its graph, and an update changes a body.
void updates() {
  DeviceArray<int> sum(1);
  const auto build = [&](int addend) {
    cudaGraph_t graph = make_graph();
    const auto handle = make_handle(graph, 1, cudaGraphCondAssignDefault);
    const Conditional conditional = add_conditional(graph, nullptr, handle, cudaGraphCondTypeIf);
    add_kernel(conditional.bodies[0], nullptr, add, sum.get(), addend);
    return graph;
  };
  cudaGraph_t graph = build(1), clone;
  std::printf("a clone: %s\n", cudaGetErrorName(cudaGraphClone(&clone, graph)));
  (void)cudaGetLastError();
  Executable executable(graph);
  CUDA(cudaGraphDestroy(graph));
  sum.clear();
  executable.run();
  std::printf("the executable of a destroyed graph: %d\n", read(sum));
  cudaGraph_t other = build(50);
  cudaGraphExecUpdateResultInfo info{};
  const cudaError_t updated = cudaGraphExecUpdate(executable.exec, other, &info);
  sum.clear();
  executable.run();
  std::printf("update of a body: %s, %d, %d\n", cudaGetErrorName(updated), info.result, read(sum));
  (void)cudaGetLastError();
  CUDA(cudaGraphDestroy(other));
}

// A conditional node in a child graph.
void as_child() {
  DeviceArray<int> sum(1);
  cudaGraph_t child = make_graph(), parent = make_graph();
  const auto handle = make_handle(child, 1, cudaGraphCondAssignDefault);
  const Conditional conditional = add_conditional(child, nullptr, handle, cudaGraphCondTypeIf);
  add_kernel(conditional.bodies[0], nullptr, add, sum.get(), 1);
  cudaGraphNode_t node;
  std::printf("as a child graph: %s\n",
              cudaGetErrorName(cudaGraphAddChildGraphNode(&node, parent, nullptr, 0, child)));
  (void)cudaGetLastError();
  CUDA(cudaGraphDestroy(parent));
  CUDA(cudaGraphDestroy(child));
}

void print_refusal(const char* what, cudaGraph_t graph, cudaGraphConditionalHandle handle, int type,
                   unsigned size) {
  cudaGraphNodeParams params{};
  params.type = cudaGraphNodeTypeConditional;
  params.conditional.handle = handle;
  params.conditional.type = static_cast<cudaGraphConditionalNodeType>(type);
  params.conditional.size = size;
  cudaGraphNode_t node;
  std::printf("%s: %s\n", what,
              cudaGetErrorName(cudaGraphAddNode(&node, graph, nullptr, nullptr, 0, &params)));
  (void)cudaGetLastError();
}

void refusals() {
  cudaGraph_t graph = make_graph();
  const auto handle = make_handle(graph);
  print_refusal("no body", graph, handle, cudaGraphCondTypeIf, 0);
  print_refusal("an if with three bodies", graph, handle, cudaGraphCondTypeIf, 3);
  print_refusal("a while with two bodies", graph, handle, cudaGraphCondTypeWhile, 2);
  print_refusal("an unknown type", graph, handle, 77, 1);
  cudaGraphConditionalHandle made;
  std::printf("unknown flags: %s\n",
              cudaGetErrorName(cudaGraphConditionalHandleCreate(&made, graph, 0, 8)));
  (void)cudaGetLastError();
  const Conditional first = add_conditional(graph, nullptr, handle, cudaGraphCondTypeIf);
  print_refusal("a handle for two nodes", graph, handle, cudaGraphCondTypeIf, 1);
  std::printf("a body is destroyed: %s\n", cudaGetErrorName(cudaGraphDestroy(first.bodies[0])));
  (void)cudaGetLastError();
  cudaGraphNodeParams host{};
  host.type = cudaGraphNodeTypeHost;
  host.host.fn = [](void*) {};
  cudaGraphNode_t node;
  const cudaError_t added = cudaGraphAddNode(&node, first.bodies[0], nullptr, nullptr, 0, &host);
  std::printf("a host node in a body: %s\n", cudaGetErrorName(added));
  (void)cudaGetLastError();
  if (added == cudaSuccess) {
    cudaGraphExec_t exec;
    const cudaError_t made_exec = cudaGraphInstantiate(&exec, graph, 0);
    std::printf("its executable: %s\n", cudaGetErrorName(made_exec));
    (void)cudaGetLastError();
  }
  CUDA(cudaGraphDestroyNode(first.node));
  print_refusal("the handle again, after its node", graph, handle, cudaGraphCondTypeIf, 1);
  CUDA(cudaGraphDestroy(graph));
  cudaGraph_t without_node = make_graph();
  (void)make_handle(without_node);
  cudaGraphExec_t exec;
  std::printf("a handle without a node: %s\n",
              cudaGetErrorName(cudaGraphInstantiate(&exec, without_node, 0)));
  (void)cudaGetLastError();
  CUDA(cudaGraphDestroy(without_node));
}

}  // namespace

int main() {
  decisions("if", cudaGraphCondTypeIf, 1, {0, 1, 7});
  decisions("if-else", cudaGraphCondTypeIf, 2, {0, 1, 2});
  decisions("switch", cudaGraphCondTypeSwitch, 4, {0, 1, 3, 4, 1000});
  loop();
  nested();
  defaults();
  captured();
  updates();
  as_child();
  refusals();
  return 0;
}
