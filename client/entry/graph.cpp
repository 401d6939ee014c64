// Graphs: launching, lifetime and user objects. The other graph_*.cpp have nodes and queries. All
// other functions of the family are generated.

#include "client/objects/graph.h"

#include <algorithm>
#include <climits>
#include <memory>

#include <cuda.h>

#include "client/mirror/mirror.h"
#include "client/objects/arena.h"
#include "client/objects/code.h"
#include "client/objects/graph_exec.h"
#include "client/process/process.h"
#include "client/route/capture.h"
#include "client/route/find_route.h"
#include "client/session/timeline.h"
#include "common/base/log.h"
#include "common/cuda/return_if_error.h"
#include "generated/client/forward.h"

namespace rcuda::client {
namespace {

// CUDA limits the counts of references to INT_MAX.
bool is_count(unsigned count) { return count > 0 && count <= INT_MAX; }

// Subtracts `count` references. Returns false and changes nothing if there are fewer.
bool take(std::atomic<unsigned>* references, unsigned count) {
  unsigned have = references->load();
  do {
    if (have < count) return false;
  } while (!references->compare_exchange_weak(have, have - count));
  return true;
}

// Releasing the last reference calls the object's function, but never on the application's thread:
// that thread may hold locks that the function takes.
void release_user_object(UserObject* object, unsigned count) {
  if (object->references.fetch_sub(count) != count) return;
  Process::get().sessions().front()->events().run_later(
      [end = object->end, pointer = object->pointer] { end(pointer); });
  destroy(object);
}

// Called after an instantiation. If kernels may launch the executable
// (CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH), replaces *executable by the handle of the worker's
// driver (graph_exec.h).
CUresult make_launchable_by_kernels(CUgraphExec* executable, CUresult instantiated,
                                    unsigned long long flags) {
  if (instantiated != CUDA_SUCCESS || !(flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH)) {
    return instantiated;
  }
  GraphExec& made = *find<GraphExec>(*executable);
  unsigned long long handle = 0;
  CUresult result = forward_rcuda_graph_exec_handle(*executable, &handle);
  if (result == CUDA_SUCCESS && !made.use_worker_handle(reinterpret_cast<CUgraphExec>(handle))) {
    RCUDA_ERROR(
        "cannot instantiate a graph for device launch: the worker's handle %#llx is already the "
        "handle of another graph in this program; restart the program",
        handle);
    result = CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (result != CUDA_SUCCESS) {
    forward_cuGraphExecDestroy(*executable);
    return result;
  }
  *executable = made.handle();
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace rcuda::client

using namespace rcuda::client;  // NOLINT: entry points live outside every namespace
namespace wire = rcuda::wire;

extern "C" {

CUresult cuGraphDestroy(CUgraph handle) {
  Graph* graph;
  RCUDA_RETURN_IF_CUDA_ERROR(resolve_object(handle, &graph));
  return forward_cuGraphDestroy(handle);
}

CUresult cuGraphClone(CUgraph* clone, CUgraph handle) {
  Graph* graph;
  RCUDA_RETURN_IF_CUDA_ERROR(resolve_object(handle, &graph));
  if (!clone) return CUDA_ERROR_INVALID_VALUE;
  RCUDA_RETURN_IF_CUDA_ERROR(forward_cuGraphClone(clone, handle));
  // The worker's clone holds the same user objects as the original.
  auto& held = find<Graph>(*clone)->held = graph->held;
  for (const HeldObject& copied : held) {
    copied.object->references.fetch_add(copied.count);
    copied.of_all->fetch_add(copied.count);
  }
  return CUDA_SUCCESS;
}

CUresult cuGraphDestroyNode(CUgraphNode handle) {
  GraphNode* node;
  RCUDA_RETURN_IF_CUDA_ERROR(resolve_object(handle, &node));
  return forward_cuGraphDestroyNode(handle);
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec* executable, CUgraph graph,
                                     unsigned long long flags) {
  const CUresult result = forward_cuGraphInstantiateWithFlags(executable, graph, flags);
  return make_launchable_by_kernels(executable, result, flags);
}

CUresult cuGraphInstantiateWithParams(CUgraphExec* executable, CUgraph graph,
                                      CUDA_GRAPH_INSTANTIATE_PARAMS* parameters) {
  const CUresult result = forward_cuGraphInstantiateWithParams(executable, graph, parameters);
  return make_launchable_by_kernels(executable, result, parameters ? parameters->flags : 0);
}

CUresult cuGraphLaunch(CUgraphExec executable, CUstream stream) {
  RCUDA_ASSIGN_OR_RETURN(const StreamRoute route, find_stream_route(stream));
  if (any_mirrored() && !may_capture(stream)) {
    RCUDA_RETURN_IF_CUDA_ERROR(push_mirrors(route));
  }
  note_stack_change();
  const HostWrite writing(route.timeline);
  // A driver refuses the launch if memory of an earlier launch is not freed yet. So the client
  // waits for the answer if any graph of the program has ever had an allocation node.
  const CaptureAnswers answers(Process::get().memory().any_of_graph());
  return forward_cuGraphLaunch(executable, stream);
}

// ---- user objects ------------------------------------------------------------------------------

CUresult cuUserObjectCreate(CUuserObject* object, void* pointer, CUhostFn destroy,
                            unsigned references, unsigned flags) {
  RCUDA_RETURN_IF_CUDA_ERROR(Process::get().check());
  if (!object || !destroy || !is_count(references) || flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (!Process::get().sessions().front()->events().start_host_functions().ok()) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  auto* created = create<UserObject>({}, pointer, destroy, references);
  if (!created) return CUDA_ERROR_OUT_OF_MEMORY;
  *object = reinterpret_cast<CUuserObject>(created);
  return CUDA_SUCCESS;
}

CUresult cuUserObjectRetain(CUuserObject handle, unsigned count) {
  UserObject* object;
  RCUDA_RETURN_IF_CUDA_ERROR(resolve_object(handle, &object));
  if (!is_count(count)) return CUDA_ERROR_INVALID_VALUE;
  object->references.fetch_add(count);
  object->own.fetch_add(count);
  return CUDA_SUCCESS;
}

CUresult cuUserObjectRelease(CUuserObject handle, unsigned count) {
  UserObject* object;
  RCUDA_RETURN_IF_CUDA_ERROR(resolve_object(handle, &object));
  if (!is_count(count) || !take(&object->own, count)) return CUDA_ERROR_INVALID_VALUE;
  release_user_object(object, count);
  return CUDA_SUCCESS;
}

CUresult cuGraphRetainUserObject(CUgraph graph_handle, CUuserObject handle, unsigned count,
                                 unsigned flags) {
  Graph* graph;
  UserObject* object;
  RCUDA_RETURN_IF_CUDA_ERROR(resolve_object(graph_handle, &graph));
  RCUDA_RETURN_IF_CUDA_ERROR(resolve_object(handle, &object));
  if (!is_count(count) || (flags & ~unsigned{CU_GRAPH_USER_OBJECT_MOVE})) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const bool moves = flags & CU_GRAPH_USER_OBJECT_MOVE;
  if (moves && !take(&object->own, count)) return CUDA_ERROR_INVALID_VALUE;
  if (!moves) object->references.fetch_add(count);
  const auto give_back = [&] {
    if (moves) {
      object->own.fetch_add(count);
    } else {
      release_user_object(object, count);
    }
  };
  HeldObject held{object, 0, count, std::make_shared<std::atomic<unsigned>>(count)};
  WorkerEvents::GraphCallback callback;
  callback.released = [object, of_all = held.of_all] {
    if (const unsigned left = of_all->exchange(0)) release_user_object(object, left);
  };
  WorkerEvents& events = graph->session->events();
  const auto number = events.add_graph_callback(std::move(callback));
  if (!number) {
    give_back();
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  held.number = *number;
  const CUresult result = forward_rcuda_graph_retain(graph_handle, held.number);
  if (result != CUDA_SUCCESS) {
    events.remove_callback(held.number);
    give_back();
    return result;
  }
  graph->held.push_back(std::move(held));
  return CUDA_SUCCESS;
}

CUresult cuGraphReleaseUserObject(CUgraph graph_handle, CUuserObject handle, unsigned count) {
  Graph* graph;
  UserObject* object;
  RCUDA_RETURN_IF_CUDA_ERROR(resolve_object(graph_handle, &graph));
  RCUDA_RETURN_IF_CUDA_ERROR(resolve_object(handle, &object));
  auto& all = graph->held;
  const auto of_object = [&](const HeldObject& held) { return held.object == object; };
  if (!is_count(count) || std::none_of(all.begin(), all.end(), of_object))
    return CUDA_ERROR_INVALID_VALUE;
  // Releases at most the references that the graph holds, like a local driver.
  for (auto held = all.begin(); held != all.end() && count > 0;) {
    if (!of_object(*held)) {
      ++held;
      continue;
    }
    if (held->count > count) {
      held->count -= count;
      held->of_all->fetch_sub(count);
      release_user_object(object, count);
      return CUDA_SUCCESS;
    }
    // Clones or executables of the graph may still hold the object. When the worker reports that
    // all have released it, the client releases these references.
    count -= held->count;
    const uint64_t number = held->number;
    held = all.erase(held);
    RCUDA_RETURN_IF_CUDA_ERROR(forward_rcuda_graph_release(graph_handle, number));
  }
  return CUDA_SUCCESS;
}

}  // extern "C"
