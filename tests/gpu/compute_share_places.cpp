// compute_share places: on which multiprocessors kernels run, by kind of launch.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include <cuda.h>

#include "tests/gpu/compute_share.h"

namespace compute_share {
namespace {

const CUstream kLegacy = CU_STREAM_LEGACY;
const CUstream kPerThread = CU_STREAM_PER_THREAD;

class Probe {
 public:
  Probe(CUdevice device, unsigned percent) : device_(device), percent_(percent) {}
  void run();

 private:
  struct Code {
    CUmodule module = nullptr;
    CUfunction where = nullptr, slow = nullptr, read = nullptr;
  };
  enum class How : uint8_t { kPlain, kCooperative, kCooperativeAll, kCluster, kGraph };

  Code load();
  CUresult launch(CUfunction function, CUstream stream, How how);
  CUresult launch_graph(CUfunction function, CUstream capture, CUstream stream);
  void place(const char* what, CUcontext context, CUfunction function, CUstream stream,
             How how = How::kPlain);
  void report(const char* what, CUresult result);
  void print(const char* what, const std::string& text) {
    std::printf("%-66s %s\n", what, text.c_str());
    std::fflush(stdout);
  }
  CUstream stream_in(CUcontext context, unsigned flags = CU_STREAM_NON_BLOCKING);
  void streams_and_contexts();
  void shapes();
  void graphs();
  void objects();
  void order(const char* what, CUcontext context, CUstream first, CUstream second,
             bool ordered_if_local);
  void orders();
  void own_contexts();
  void reset();

  const CUdevice device_;
  const unsigned percent_;
  int sms_ = 0;
  CUcontext primary_ = nullptr;
  Share share_;
  Code in_primary_, in_share_;
  CUdeviceptr flags_ = 0;
};

Probe::Code Probe::load() {
  Code code;
  must(cu.cuModuleLoadData(&code.module, kPtx), "cuModuleLoadData");
  must(cu.cuModuleGetFunction(&code.where, code.module, "where"), "where");
  must(cu.cuModuleGetFunction(&code.slow, code.module, "slow"), "slow");
  must(cu.cuModuleGetFunction(&code.read, code.module, "read"), "read");
  return code;
}

CUstream Probe::stream_in(CUcontext context, unsigned flags) {
  cu.cuCtxSetCurrent(context);
  CUstream stream = nullptr;
  must(cu.cuStreamCreate(&stream, flags), "cuStreamCreate");
  return stream;
}

CUresult Probe::launch(CUfunction function, CUstream stream, How how) {
  uint64_t spin = 200'000;
  void* parameters[] = {&flags_, &spin};
  const auto blocks = static_cast<unsigned>(sms_ * 16);
  int per_sm = 0;
  cu.cuOccupancyMaxActiveBlocksPerMultiprocessor(&per_sm, function, 256, 0);
  switch (how) {
    case How::kPlain:
      return cu.cuLaunchKernel(function, blocks, 1, 1, 256, 1, 1, 0, stream, parameters, nullptr);
    case How::kCooperative:
      return cu.cuLaunchCooperativeKernel(function,
                                          static_cast<unsigned>(per_sm) * share_.sms.sm.smCount, 1,
                                          1, 256, 1, 1, 0, stream, parameters);
    case How::kCooperativeAll:
      return cu.cuLaunchCooperativeKernel(function, static_cast<unsigned>(per_sm * sms_), 1, 1, 256,
                                          1, 1, 0, stream, parameters);
    case How::kCluster: {
      CUlaunchAttribute attribute{};
      attribute.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
      attribute.value.clusterDim.x = 8;
      attribute.value.clusterDim.y = attribute.value.clusterDim.z = 1;
      CUlaunchConfig config{};
      config.gridDimX = blocks / 8 * 8;
      config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1;
      config.blockDimX = 256;
      config.hStream = stream;
      config.attrs = &attribute;
      config.numAttrs = 1;
      return cu.cuLaunchKernelEx(&config, function, parameters, nullptr);
    }
    case How::kGraph:
      return launch_graph(function, stream, stream);
  }
  return CUDA_ERROR_UNKNOWN;
}

CUresult Probe::launch_graph(CUfunction function, CUstream capture, CUstream stream) {
  CUresult result = cu.cuStreamBeginCapture_v2(capture, CU_STREAM_CAPTURE_MODE_RELAXED);
  if (result != CUDA_SUCCESS) return result;
  const CUresult launched = launch(function, capture, How::kPlain);
  CUgraph graph = nullptr;
  result = cu.cuStreamEndCapture(capture, &graph);
  if (launched != CUDA_SUCCESS) return launched;
  if (result != CUDA_SUCCESS) return result;
  CUgraphExec executable = nullptr;
  result = cu.cuGraphInstantiateWithFlags(&executable, graph, 0);
  if (result == CUDA_SUCCESS) result = cu.cuGraphLaunch(executable, stream);
  if (result == CUDA_SUCCESS) result = cu.cuStreamSynchronize(stream);
  return result;
}

void Probe::report(const char* what, CUresult result) {
  cu.cuCtxSetCurrent(primary_);
  const CUresult done = cu.cuCtxSynchronize();
  if (result == CUDA_SUCCESS) result = done;
  std::vector<uint32_t> flags(kMostSms);
  if (result == CUDA_SUCCESS) {
    result = cu.cuMemcpyDtoH_v2(flags.data(), flags_, flags.size() * 4);
  }
  if (result != CUDA_SUCCESS) return print(what, name_of(result));
  int used = 0;
  for (const uint32_t flag : flags) used += flag != 0;
  print(what, std::to_string(used));
}

void Probe::place(const char* what, CUcontext context, CUfunction function, CUstream stream,
                  How how) {
  cu.cuCtxSetCurrent(primary_);
  cu.cuMemsetD8_v2(flags_, 0, kMostSms * 4);
  cu.cuCtxSynchronize();
  cu.cuCtxSetCurrent(context);
  CUresult result = launch(function, stream, how);
  if (result == CUDA_SUCCESS) result = cu.cuCtxSynchronize();
  report(what, result);
}

void Probe::streams_and_contexts() {
  const CUcontext green = share_.context;
  const CUfunction there = in_share_.where, here = in_primary_.where;
  place("primary context, null stream", primary_, here, nullptr);
  place("primary context, created stream", primary_, here, stream_in(primary_));
  place("green context, null stream, its own module", green, there, nullptr);
  place("green context, null stream, module of the primary context", green, here, nullptr);
  place("green context, legacy stream", green, there, kLegacy);
  place("green context, stream per thread", green, there, kPerThread);
  place("green context, created stream", green, there, stream_in(green));
  place("green context, blocking stream", green, there, stream_in(green, CU_STREAM_DEFAULT));
  CUstream made = nullptr;
  const CUresult result = cu.cuGreenCtxStreamCreate(&made, share_.green, CU_STREAM_NON_BLOCKING, 0);
  if (result == CUDA_SUCCESS) {
    place("green context, stream of cuGreenCtxStreamCreate", green, there, made);
    place("primary context, stream of the green context", primary_, there, made);
  } else {
    print("green context, stream of cuGreenCtxStreamCreate", name_of(result));
  }
  place("green context, stream of the primary context", green, there, stream_in(primary_));
  place("primary context, null stream, module of the green context", primary_, there, nullptr);
}

void Probe::shapes() {
  const CUcontext green = share_.context;
  const CUstream stream = stream_in(green);
  cu.cuCtxSetCurrent(green);
  int value = 0, per_sm = 0;
  cu.cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device_);
  print("MULTIPROCESSOR_COUNT with the green context current", std::to_string(value));
  cu.cuOccupancyMaxActiveBlocksPerMultiprocessor(&per_sm, in_share_.where, 256, 0);
  int grid = 0, block = 0;
  cu.cuOccupancyMaxPotentialBlockSize(&grid, &block, in_share_.where, nullptr, 0, 0);
  print("blocks that fill it, by cuOccupancyMaxPotentialBlockSize",
        std::to_string(grid) + " (" + std::to_string(per_sm) + " of 256 threads per SM)");
  place("cooperative launch, as many blocks as fit the green context", green, in_share_.where,
        stream, How::kCooperative);
  place("cooperative launch, as many blocks as fit the device", green, in_share_.where, stream,
        How::kCooperativeAll);
  place("launch of clusters of 8", green, in_share_.where, stream, How::kCluster);
}

void Probe::graphs() {
  const CUcontext green = share_.context;
  const CUstream in_green = stream_in(green), in_primary = stream_in(primary_);
  place("graph captured and launched in the green context", green, in_share_.where, in_green,
        How::kGraph);
  const auto cross = [&](const char* what, CUcontext context, CUstream capture, CUstream stream) {
    cu.cuCtxSetCurrent(primary_);
    cu.cuMemsetD8_v2(flags_, 0, kMostSms * 4);
    cu.cuCtxSynchronize();
    cu.cuCtxSetCurrent(context);
    report(what, launch_graph(in_share_.where, capture, stream));
  };
  cross("graph captured in the primary, launched in the green context", green, in_primary,
        in_green);
  cross("graph captured in the green, launched in the primary context", green, in_green,
        in_primary);
  cu.cuCtxSetCurrent(primary_);
  cu.cuMemsetD8_v2(flags_, 0, kMostSms * 4);
  cu.cuCtxSynchronize();
  for (const bool primary : {false, true}) {
    cu.cuCtxSetCurrent(green);
    uint64_t spin = 200'000;
    void* parameters[] = {&flags_, &spin};
    CUDA_KERNEL_NODE_PARAMS node{};
    node.func = in_share_.where;
    node.gridDimX = static_cast<unsigned>(sms_ * 16);
    node.gridDimY = node.gridDimZ = node.blockDimY = node.blockDimZ = 1;
    node.blockDimX = 256;
    node.kernelParams = parameters;
    node.ctx = primary ? primary_ : nullptr;
    CUgraph graph = nullptr;
    CUgraphNode added = nullptr;
    CUgraphExec executable = nullptr;
    CUresult result = cu.cuGraphCreate(&graph, 0);
    if (result == CUDA_SUCCESS) {
      result = cu.cuGraphAddKernelNode_v2(&added, graph, nullptr, 0, &node);
    }
    if (result == CUDA_SUCCESS) result = cu.cuGraphInstantiateWithFlags(&executable, graph, 0);
    if (result == CUDA_SUCCESS) result = cu.cuGraphLaunch(executable, in_green);
    if (result == CUDA_SUCCESS) result = cu.cuStreamSynchronize(in_green);
    report(primary ? "graph with a node of the primary context" : "graph made by nodes", result);
  }
}

// Calls that a worker makes in the context of a device.
void Probe::objects() {
  const CUcontext green = share_.context;
  cu.cuCtxSetCurrent(green);
  const auto say = [&](const char* what, CUresult result, const std::string& more = {}) {
    print(what, name_of(result) + (more.empty() ? "" : ": " + more));
  };
  // The order in which arguments are evaluated is unspecified, so values are read after the call.
  const auto ask = [&](const char* what, CUresult result, const auto& value) {
    say(what, result, std::to_string(value));
  };
  const auto say_owner = [&](const char* what, CUresult result, const CUcontext& owner) {
    say(what, result, owner == green ? "green" : owner == primary_ ? "primary" : "other");
  };
  CUdevice device = -1;
  ask("cuCtxGetDevice", cu.cuCtxGetDevice(&device), device);
  unsigned flags = 0, version = 0;
  ask("cuCtxGetFlags", cu.cuCtxGetFlags(&flags), flags);
  ask("cuCtxGetApiVersion", cu.cuCtxGetApiVersion(green, &version), version);
  unsigned long long id = 0, primary_id = 0;
  say("cuCtxGetId", cu.cuCtxGetId(green, &id));
  cu.cuCtxGetId(primary_, &primary_id);
  print("  green and primary context have one id", id == primary_id ? "yes" : "no");
  print("  one handle", green == primary_ ? "yes" : "no");
  size_t limit = 0;
  say("cuCtxGetLimit(PRINTF_FIFO_SIZE)", cu.cuCtxGetLimit(&limit, CU_LIMIT_PRINTF_FIFO_SIZE));
  say("cuCtxSetLimit(STACK_SIZE)", cu.cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 2048));
  CUexecAffinityParam affinity{};
  ask("cuCtxGetExecAffinity", cu.cuCtxGetExecAffinity(&affinity, CU_EXEC_AFFINITY_TYPE_SM_COUNT),
      affinity.param.smCount.val);
  int least = 0, greatest = 0;
  ask("cuCtxGetStreamPriorityRange", cu.cuCtxGetStreamPriorityRange(&least, &greatest), greatest);
  CUcontext owner = nullptr;
  say_owner("cuStreamGetCtx of its null stream", cu.cuStreamGetCtx(nullptr, &owner), owner);
  say_owner("cuStreamGetCtx of its created stream", cu.cuStreamGetCtx(stream_in(green), &owner),
            owner);
  CUdeviceptr plain = 0, pooled = 0, managed = 0;
  say("cuMemAlloc", cu.cuMemAlloc_v2(&plain, 1 << 20));
  say_owner("cuPointerGetAttribute(CONTEXT)",
            cu.cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, plain), owner);
  say("cuMemAllocAsync in the null stream", cu.cuMemAllocAsync(&pooled, 1 << 20, nullptr));
  say("cuMemFreeAsync", cu.cuMemFreeAsync(pooled, nullptr));
  say("cuMemAllocManaged", cu.cuMemAllocManaged(&managed, 1 << 20, CU_MEM_ATTACH_GLOBAL));
  void* host = nullptr;
  say("cuMemHostAlloc", cu.cuMemHostAlloc(&host, 1 << 20, CU_MEMHOSTALLOC_PORTABLE));
  say("cuMemcpyHtoDAsync", cu.cuMemcpyHtoDAsync_v2(plain, host, 1 << 20, stream_in(green)));
  say("cuMemcpyPeerAsync green to green",
      cu.cuMemcpyPeerAsync(plain, green, managed, green, 1 << 20, nullptr));
  say("cuMemsetD8Async", cu.cuMemsetD8Async(plain, 0, 1 << 20, nullptr));
  CUevent event = nullptr;
  say("cuEventCreate", cu.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  say("cuEventRecord in its null stream", cu.cuEventRecord(event, nullptr));
  say("cuEventRecord in a stream of the primary context",
      cu.cuEventRecord(event, stream_in(primary_)));
  cu.cuCtxSetCurrent(green);
  say("cuStreamWaitEvent", cu.cuStreamWaitEvent(stream_in(green), event, 0));
  CUlibrary library = nullptr;
  CUkernel kernel = nullptr;
  say("cuLibraryLoadData",
      cu.cuLibraryLoadData(&library, kPtx, nullptr, nullptr, 0, nullptr, nullptr, 0));
  say("cuLibraryGetKernel", cu.cuLibraryGetKernel(&kernel, library, "where"));
  place("kernel of a library, green context", green, reinterpret_cast<CUfunction>(kernel), nullptr);
  say("cuCtxSynchronize", (cu.cuCtxSetCurrent(green), cu.cuCtxSynchronize()));
  say("cuMemFree with the primary context current",
      (cu.cuCtxSetCurrent(primary_), cu.cuMemFree_v2(plain)));
  CUmodule late = nullptr;
  cu.cuCtxSetCurrent(green);
  say("cuModuleLoadData", cu.cuModuleLoadData(&late, kPtx));
  say("cuModuleUnload", cu.cuModuleUnload(late));
  if (cu.cuCtxRecordEvent) say("cuCtxRecordEvent", cu.cuCtxRecordEvent(green, event));
  say("cuCtxResetPersistingL2Cache", cu.cuCtxResetPersistingL2Cache());
}

// Launches a kernel in `first`, then a kernel in `second` that reads the word that the first
// writes.
void Probe::order(const char* what, CUcontext context, CUstream first, CUstream second,
                  bool ordered_if_local) {
  cu.cuCtxSetCurrent(context);
  const Code& code = context == primary_ ? in_primary_ : in_share_;
  CUdeviceptr from = flags_, out = flags_ + 4;
  cu.cuMemsetD8_v2(flags_, 0, 8);
  cu.cuCtxSynchronize();
  uint64_t spin = 20'000'000;
  void* writes[] = {&from, &spin};
  void* reads[] = {&out, &from};
  CUresult result = cu.cuLaunchKernel(code.slow, 1, 1, 1, 1, 1, 1, 0, first, writes, nullptr);
  if (result == CUDA_SUCCESS) {
    result = cu.cuLaunchKernel(code.read, 1, 1, 1, 1, 1, 1, 0, second, reads, nullptr);
  }
  uint32_t saw = 2;
  if (result == CUDA_SUCCESS) result = cu.cuCtxSynchronize();
  if (result == CUDA_SUCCESS) result = cu.cuMemcpyDtoH_v2(&saw, out, 4);
  print(what, result != CUDA_SUCCESS
                  ? name_of(result)
                  : std::string(saw ? "waits" : "does not wait") +
                        (ordered_if_local == (saw != 0) ? "" : " (UNLIKE LOCAL)"));
}

void Probe::orders() {
  for (const bool green : {false, true}) {
    const CUcontext context = green ? share_.context : primary_;
    const std::string in = green ? "green: " : "primary: ";
    const CUstream blocking = stream_in(context, CU_STREAM_DEFAULT);
    order((in + "null stream after a blocking stream").c_str(), context, blocking, nullptr, true);
    order((in + "blocking stream after the null stream").c_str(), context, nullptr, blocking, true);
    order((in + "non-blocking stream after the null stream").c_str(), context, nullptr,
          stream_in(context), false);
    order((in + "legacy stream after a blocking stream").c_str(), context, blocking, kLegacy, true);
    order((in + "stream per thread after the null stream").c_str(), context, nullptr, kPerThread,
          true);
    order((in + "null stream after the legacy stream").c_str(), context, kLegacy, nullptr, true);
  }
  order("green: null stream after a blocking stream of the primary context", share_.context,
        stream_in(primary_, CU_STREAM_DEFAULT), nullptr, true);
}

void Probe::own_contexts() {
  CUcontext own = nullptr;
  cu.cuCtxSetCurrent(share_.context);
  const CUresult made = cu.cuCtxCreate_v2(&own, 0, device_);
  if (made != CUDA_SUCCESS) return print("context of cuCtxCreate", name_of(made));
  const Code code = load();
  // Kernels of this context write into memory of the primary context: unified addressing allows it.
  place("context of cuCtxCreate", own, code.where, nullptr);
  cu.cuCtxDestroy_v2(own);
  CUexecAffinityParam affinity{};
  affinity.type = CU_EXEC_AFFINITY_TYPE_SM_COUNT;
  affinity.param.smCount.val = share_.sms.sm.smCount;
  const CUresult limited = cu.cuCtxCreate_v3(&own, &affinity, 1, 0, device_);
  print("cuCtxCreate with an execution affinity", name_of(limited));
  if (limited == CUDA_SUCCESS) {
    place("  kernel there", own, load().where, nullptr);
    cu.cuCtxDestroy_v2(own);
  }
}

void Probe::reset() {
  print("cuDevicePrimaryCtxReset beside a green context",
        name_of(cu.cuDevicePrimaryCtxReset_v2(device_)));
  cu.cuCtxSetCurrent(share_.context);
  CUdeviceptr memory = 0;
  print("  cuMemAlloc in the green context then", name_of(cu.cuMemAlloc_v2(&memory, 1 << 20)));
  print("  cuGreenCtxDestroy", name_of(cu.cuGreenCtxDestroy(share_.green)));
  cu.cuDevicePrimaryCtxRelease_v2(device_);
  must(cu.cuDevicePrimaryCtxRetain(&primary_, device_), "cuDevicePrimaryCtxRetain");
  const CUresult again = make_share(device_, percent_, &share_);
  print("  a new green context", name_of(again));
  if (again != CUDA_SUCCESS) return;
  cu.cuCtxSetCurrent(share_.context);
  must(cu.cuMemAlloc_v2(&flags_, kMostSms * 4), "cuMemAlloc");
  const Code code = load();
  place("  kernel there", share_.context, code.where, nullptr);
}

void Probe::run() {
  must(cu.cuDevicePrimaryCtxRetain(&primary_, device_), "cuDevicePrimaryCtxRetain");
  cu.cuCtxSetCurrent(primary_);
  cu.cuDeviceGetAttribute(&sms_, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device_);
  must(cu.cuMemAlloc_v2(&flags_, kMostSms * 4), "cuMemAlloc");
  in_primary_ = load();
  print("multiprocessors", std::to_string(sms_));
  if (percent_ >= 100) {
    place("primary context, null stream", primary_, in_primary_.where, nullptr);
    place("primary context, created stream", primary_, in_primary_.where, stream_in(primary_));
    place("primary context, cooperative, all blocks", primary_, in_primary_.where, nullptr,
          How::kCooperativeAll);
    return own_contexts();
  }
  for (const unsigned percent : {1u, 10u, 25u, 50u, 75u, 99u}) {
    Share share;
    const Clock::time_point begin = Clock::now();
    const CUresult made = make_share(device_, percent, &share);
    const double ms = ms_since(begin);
    char text[128];
    std::snprintf(text, sizeof text, "%s, %u multiprocessors, %.2f ms", name_of(made).c_str(),
                  share.sms.sm.smCount, ms);
    print(("green context of " + std::to_string(percent) + " %").c_str(), text);
    if (made == CUDA_SUCCESS) cu.cuGreenCtxDestroy(share.green);
  }
  must(make_share(device_, percent_, &share_), "green context");
  cu.cuCtxSetCurrent(share_.context);
  in_share_ = load();
  print("green context used below: multiprocessors", std::to_string(share_.sms.sm.smCount));
  streams_and_contexts();
  shapes();
  graphs();
  objects();
  orders();
  own_contexts();
  reset();
}

}  // namespace

void print_places(CUdevice device, unsigned percent) { Probe(device, percent).run(); }

}  // namespace compute_share
