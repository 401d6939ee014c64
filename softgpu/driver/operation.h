// Operations: the work that streams execute and that graphs consist of.
//
// Every asynchronous entry point of the driver builds one Operation and hands it to submit(). If
// the stream is capturing, the operation becomes a graph node; otherwise it is appended to the
// stream and carried out, in order, by that stream's thread. Graph launches append a captured
// graph's operations again. So each kind of work has one description and one executor, whichever
// way it was asked for.
//
// An Operation owns everything it needs (parameter bytes are copied); handles inside it are
// shared_ptrs or raw CUDA handles that the caller validated.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <variant>
#include <vector>

#include <cuda.h>

namespace softgpu::driver {

struct Allocation;
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
  std::vector<std::byte> parameters;  // packed as the kernel wants them
  // What a graph's node tells of it: the library's kernel that was named, if one was, and whether
  // the parameters came packed (CU_LAUNCH_PARAM_*).
  CUkernel kernel = nullptr;
  bool came_packed = false;
};

// Any copy: 1D copies are copies of height and depth 1. Both contexts are set for peer copies.
struct CopyOperation {
  CUDA_MEMCPY3D_PEER shape{};
  bool unified = false;  // given by unified addresses, which is what a graph's node then tells
  // A source that was read when the call was made, see stage_source(). Then srcHost is not read.
  std::shared_ptr<const std::vector<std::byte>> staged;
  // MemoryRegistry::hold() of both ends, unless they are pageable: the memory stays until the copy
  // is over. Not in graphs.
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

// `record` is the recording that this execution completes; graph nodes get one at each launch.
struct EventRecordOperation {
  std::shared_ptr<Event> event;
  std::shared_ptr<EventRecord> record;
  uint64_t interprocess_value = 0;  // for events shared between processes
};
// Only in graphs: cuStreamWaitEvent on a stream turns into Points, taken at the time of the call.
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
// Stream-ordered memory. While a stream captures they become memory nodes of the graph, and
// `memory` is that node's allocation.
struct AllocateOperation {
  CUdeviceptr address = 0;
  std::shared_ptr<GraphMemory> memory;
};
struct FreeOperation {
  CUdeviceptr address = 0;
};
struct ChildGraphOperation {
  std::shared_ptr<Graph> graph;
};
struct GraphLaunchOperation {
  std::shared_ptr<GraphRun> run;
};
struct EmptyOperation {};

using Operation = std::variant<EmptyOperation, KernelOperation, CopyOperation, FillOperation,
                               HostOperation, EventRecordOperation, EventWaitOperation,
                               InterprocessWaitOperation, MemOpOperation, AllocateOperation,
                               FreeOperation, ChildGraphOperation, GraphLaunchOperation>;

// Validates the stream handle (0, legacy, per-thread or created), then captures or appends.
// Returns the context's sticky error if it has one. Never waits for the operation.
CUresult submit(CUstream stream, Operation operation);

// submit() on `stream`, then waits for it to finish: synchronous copies. Refused while capturing
// (CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED / _IMPLICIT as the real driver does).
CUresult submit_and_wait(CUstream stream, Operation operation);

// True while the stream captures: cuMemAllocAsync and its like take another way then.
bool is_capturing(CUstream stream);

// True on a thread that is inside a host function or stream callback: no CUDA call may be made
// there, every entry point returns CUDA_ERROR_NOT_PERMITTED.
bool in_host_function();

// Executors, called on a stream's thread. A result other than success becomes sticky.
CUresult execute_kernel(Context& context, const KernelOperation& operation);
CUresult execute_copy(Context& context, const CopyOperation& operation);
CUresult execute_fill(Context& context, const FillOperation& operation);
CUresult execute_allocate(Context& context, const AllocateOperation& operation);
CUresult execute_free(Context& context, const FreeOperation& operation);

}  // namespace softgpu::driver
