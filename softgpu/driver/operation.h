// Operations: the work that streams execute and that graphs consist of.
//
// Every asynchronous entry point of the driver builds an Operation and passes it to submit(). If
// the stream is capturing, the operation becomes a graph node. Otherwise it is appended to the
// stream, and the stream's thread executes it in order. A graph launch executes a captured graph's
// operations. So each kind of work has one description and one executor, however it was requested.
//
// An Operation owns everything it needs (parameter bytes are copied). The handles in it are
// shared_ptrs, or raw CUDA handles that the caller has validated.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <variant>
#include <vector>

#include <cuda.h>

namespace softgpu::driver {

struct Allocation;
class Condition;
class Context;
class Event;
struct EventRecord;
class Function;
class Graph;
class GraphMemory;
class GraphRun;
class InterprocessEvent;

struct KernelOperation {
  std::shared_ptr<Function> function;
  uint32_t grid[3] = {1, 1, 1};
  uint32_t block[3] = {1, 1, 1};
  uint32_t dynamic_shared_bytes = 0;
  bool cooperative = false;
  std::vector<std::byte> parameters;  // in the kernel's layout
  // For the parameters that a graph node reports: the CUkernel, if the caller passed one instead of
  // a CUfunction, and whether the parameters were given packed (CU_LAUNCH_PARAM_*).
  CUkernel kernel = nullptr;
  bool came_packed = false;
};

// A copy of any shape: 1D copies have height and depth 1. Both contexts are set for peer copies.
struct CopyOperation {
  CUDA_MEMCPY3D_PEER shape{};
  bool unified = false;  // the caller gave unified addresses, which a graph node then reports
  // The contents of the source, if they were read at the call (stage_source()). srcHost is then not
  // read.
  std::shared_ptr<const std::vector<std::byte>> staged;
  // MemoryRegistry::hold() of both ends: keeps the memory until the copy has ended. Null for
  // pageable memory, for memory whose free may already be queued, and in graphs.
  std::shared_ptr<Allocation> source_memory, destination_memory;
};

struct FillOperation {  // memset
  CUdeviceptr destination = 0;
  size_t pitch_bytes = 0;
  unsigned value = 0;
  unsigned element_bytes = 1;
  size_t width_elements = 0;
  size_t height = 1;
};

struct HostOperation {
  CUhostFn function = nullptr;          // cuLaunchHostFunc
  CUstreamCallback callback = nullptr;  // cuStreamAddCallback: gets stream and status
  CUstream stream = nullptr;
  void* user_data = nullptr;
};

// `record` is the recording that this execution completes. Graph nodes get one at each launch.
struct EventRecordOperation {
  std::shared_ptr<Event> event;
  std::shared_ptr<EventRecord> record;
  uint64_t interprocess_value = 0;  // the recording's number, for an event that processes share
};
// Exists only in graphs. Outside of a capture, cuStreamWaitEvent takes the event's Point at the
// call instead.
struct EventWaitOperation {
  std::shared_ptr<Event> event;
};
// Waits for a recording that another process may have made.
struct InterprocessWaitOperation {
  std::shared_ptr<InterprocessEvent> event;
  uint64_t target = 0;
};
struct MemOpOperation {
  std::vector<CUstreamBatchMemOpParams> operations;
};
// Stream-ordered memory. While a stream captures, these operations become memory nodes of the
// graph; `memory` is then the node's allocation.
struct AllocateOperation {
  CUdeviceptr address = 0;
  std::shared_ptr<GraphMemory> memory;
};
struct FreeOperation {
  CUdeviceptr address = 0;
  uint64_t id = 0;  // Allocation::id of a pool's memory
};
struct ChildGraphOperation {
  std::shared_ptr<Graph> graph;
};
// Runs one of its bodies, no body, or (a loop) a body repeatedly, by the value of its condition.
struct ConditionalOperation {
  std::shared_ptr<Condition> condition;
  CUgraphConditionalNodeType type{};
  std::vector<std::shared_ptr<Graph>> bodies;
  std::vector<CUgraph> handles;  // of the bodies; CUgraphNodeParams points to this array
};
struct GraphLaunchOperation {
  std::shared_ptr<GraphRun> run;
};
struct EmptyOperation {};

using Operation =
    std::variant<EmptyOperation, KernelOperation, CopyOperation, FillOperation, HostOperation,
                 EventRecordOperation, EventWaitOperation, InterprocessWaitOperation,
                 MemOpOperation, AllocateOperation, FreeOperation, ChildGraphOperation,
                 ConditionalOperation, GraphLaunchOperation>;

// Validates the stream handle (0, legacy, per-thread or created), then captures or appends the
// operation. Returns the context's sticky error if it has one. Does not wait for the operation.
CUresult submit(CUstream stream, Operation operation);

// The stream of calls without a stream argument: CU_STREAM_LEGACY or CU_STREAM_PER_THREAD.
CUstream default_stream();

// For synchronous copies: submit() on `stream`, then waits until the operation has finished.
// Refused during a capture (CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED or _IMPLICIT, as by the real
// driver).
CUresult submit_and_wait(CUstream stream, Operation operation);

// True while the stream captures; cuMemAllocAsync and similar calls then add graph nodes.
bool is_capturing(CUstream stream);

// True on a thread that is inside a host function or stream callback. CUDA calls are not allowed
// there: every entry point returns CUDA_ERROR_NOT_PERMITTED.
bool in_host_function();

// Executors, called on the thread that runs the stream: a borrowed thread, or a thread that waits
// for the stream. Any result other than success becomes sticky.
CUresult execute_kernel(Context& context, const KernelOperation& operation);
CUresult execute_copy(Context& context, const CopyOperation& operation);
CUresult execute_fill(Context& context, const FillOperation& operation);
CUresult execute_allocate(Context& context, const AllocateOperation& operation);
CUresult execute_free(Context& context, const FreeOperation& operation);

}  // namespace softgpu::driver
