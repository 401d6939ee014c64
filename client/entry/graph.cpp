// Graphs: launching, lifetime and user objects. What a graph is made of is in graph_nodes.cpp; the
// rest of the family is generated.

#include <algorithm>
#include <memory>

#include <cuda.h>

#include "api/stubs/shared.h"
#include "client/memory/host_writes.h"
#include "client/memory/mirror.h"
#include "client/session/capture.h"
#include "client/session/graph_state.h"
#include "client/session/process.h"
#include "client/session/progress.h"
#include "generated/client/forward.h"

namespace rcuda::client {

GraphState* graph_state(Object* graph) {
  if (!graph->extra) graph->extra = new GraphState;
  return static_cast<GraphState*>(graph->extra);
}

NodeState* node_state(Object* node) {
  if (!node->extra) node->extra = new NodeState;
  return static_cast<NodeState*>(node->extra);
}

namespace {

CUresult find(const void* handle, wire::Kind kind, Object** object) {
  if (CUresult result = Process::get().check(); result != CUDA_SUCCESS) return result;
  *object = find_object(handle, kind);
  return *object ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// False when `object` has fewer references. At the last one its end is called, never on the
// application's thread, which may hold locks that it waits for.
bool release_user_object(Object* object, unsigned count) {
  auto* user = static_cast<UserObject*>(object->extra);
  unsigned have = user->references.load();
  do {
    if (have < count) return false;
  } while (!user->references.compare_exchange_weak(have, have - count));
  if (have > count) return true;
  Process::get().sessions().front()->events().run_later(
      [destroy = user->destroy, pointer = user->pointer] { destroy(pointer); });
  delete user;
  retire_object(object);
  return true;
}

}  // namespace
}  // namespace rcuda::client

using namespace rcuda::client;  // NOLINT: entry points live outside every namespace
namespace wire = rcuda::wire;

extern "C" {

CUresult cuGraphDestroy(CUgraph handle) {
  Object* graph;
  if (CUresult result = find(handle, wire::Kind::kGraph, &graph); result != CUDA_SUCCESS)
    return result;
  auto* state = static_cast<GraphState*>(graph->extra);
  const CUresult result = forward_cuGraphDestroy(handle);
  if (rcuda::api::is_gone(result)) delete state;
  return result;
}

CUresult cuGraphClone(CUgraph* clone, CUgraph handle) {
  Object* graph;
  if (CUresult result = find(handle, wire::Kind::kGraph, &graph); result != CUDA_SUCCESS)
    return result;
  if (!clone) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = forward_cuGraphClone(clone, handle);
  if (result != CUDA_SUCCESS || !graph->extra) return result;
  // The worker's clone holds what its original holds.
  *graph_state(find_object(*clone, wire::Kind::kGraph)) = *graph_state(graph);
  return result;
}

CUresult cuGraphDestroyNode(CUgraphNode handle) {
  Object* node;
  if (CUresult result = find(handle, wire::Kind::kGraphNode, &node); result != CUDA_SUCCESS) {
    return result;
  }
  auto* state = static_cast<NodeState*>(node->extra);
  const CUresult result = forward_cuGraphDestroyNode(handle);
  if (rcuda::api::is_gone(result)) delete state;
  return result;
}

CUresult cuGraphLaunch(CUgraphExec executable, CUstream stream) {
  graph_launched();
  Target target;
  wire::ObjectId id;
  if (CUresult result = resolve_unused(stream, &target, &id); result != CUDA_SUCCESS) return result;
  if (CUresult result = push_mirrors(*target.session, target.context, id); result != CUDA_SUCCESS) {
    return result;
  }
  host_writes::begun(*target.session, target.context, id);
  // Memory of the graph's that has not been freed since forbids the launch.
  const CaptureAnswers answers(Process::get().memory().any_of_graph());
  const CUresult result = forward_cuGraphLaunch(executable, stream);
  graph_launched();  // as for a record of an event: counted before and after
  return result;
}

// ---- user objects ------------------------------------------------------------------------------

CUresult cuUserObjectCreate(CUuserObject* object, void* pointer, CUhostFn destroy,
                            unsigned references, unsigned flags) {
  if (CUresult result = Process::get().check(); result != CUDA_SUCCESS) return result;
  if (!object || !destroy || references == 0 || flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (!Process::get().sessions().front()->events().start_host_functions().ok()) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  Object* created = create_object(wire::Kind::kUserObject);
  if (!created) return CUDA_ERROR_OUT_OF_MEMORY;
  auto* user = new UserObject;
  user->pointer = pointer;
  user->destroy = destroy;
  user->references.store(references);
  created->extra = user;
  *object = reinterpret_cast<CUuserObject>(created);
  return CUDA_SUCCESS;
}

CUresult cuUserObjectRetain(CUuserObject handle, unsigned count) {
  Object* object;
  if (CUresult result = find(handle, wire::Kind::kUserObject, &object); result != CUDA_SUCCESS) {
    return result;
  }
  if (count == 0) return CUDA_ERROR_INVALID_VALUE;
  static_cast<UserObject*>(object->extra)->references.fetch_add(count);
  return CUDA_SUCCESS;
}

CUresult cuUserObjectRelease(CUuserObject handle, unsigned count) {
  Object* object;
  if (CUresult result = find(handle, wire::Kind::kUserObject, &object); result != CUDA_SUCCESS) {
    return result;
  }
  return count > 0 && release_user_object(object, count) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphRetainUserObject(CUgraph graph_handle, CUuserObject handle, unsigned count,
                                 unsigned flags) {
  Object *graph, *object;
  if (CUresult result = find(graph_handle, wire::Kind::kGraph, &graph); result != CUDA_SUCCESS) {
    return result;
  }
  if (CUresult result = find(handle, wire::Kind::kUserObject, &object); result != CUDA_SUCCESS) {
    return result;
  }
  if (count == 0 || (flags & ~unsigned{CU_GRAPH_USER_OBJECT_MOVE})) return CUDA_ERROR_INVALID_VALUE;
  HeldObject held{object, 0, std::make_shared<std::atomic<unsigned>>(count)};
  EventThread::GraphCallback callback;
  callback.released = [object, count = held.count] {
    if (const unsigned left = count->exchange(0)) (void)release_user_object(object, left);
  };
  EventThread& events = graph->session->events();
  const auto number = events.add_graph_callback(std::move(callback));
  if (!number) return CUDA_ERROR_OUT_OF_MEMORY;
  held.number = *number;
  if (!(flags & CU_GRAPH_USER_OBJECT_MOVE)) {
    static_cast<UserObject*>(object->extra)->references.fetch_add(count);
  }
  const CUresult result = forward_rcuda_graph_retain(graph_handle, held.number);
  if (result != CUDA_SUCCESS) {
    events.remove_callback(held.number);
    if (!(flags & CU_GRAPH_USER_OBJECT_MOVE)) (void)release_user_object(object, count);
    return result;
  }
  graph_state(graph)->held.push_back(std::move(held));
  return CUDA_SUCCESS;
}

CUresult cuGraphReleaseUserObject(CUgraph graph_handle, CUuserObject handle, unsigned count) {
  Object *graph, *object;
  if (CUresult result = find(graph_handle, wire::Kind::kGraph, &graph); result != CUDA_SUCCESS) {
    return result;
  }
  if (CUresult result = find(handle, wire::Kind::kUserObject, &object); result != CUDA_SUCCESS) {
    return result;
  }
  auto& all = graph_state(graph)->held;
  const auto of_object = [&](const HeldObject& held) { return held.object == object; };
  if (count == 0 || std::none_of(all.begin(), all.end(), of_object))
    return CUDA_ERROR_INVALID_VALUE;
  // A local driver gives back at most what the graph holds.
  for (auto held = all.begin(); held != all.end() && count > 0;) {
    if (!of_object(*held)) {
      ++held;
      continue;
    }
    const unsigned have = held->count->load();
    if (have > count) {
      held->count->store(have - count);
      (void)release_user_object(object, count);
      return CUDA_SUCCESS;
    }
    // What was made of the graph may hold them still; the worker tells when that is over.
    count -= have;
    const uint64_t number = held->number;
    held = all.erase(held);
    if (CUresult result = forward_rcuda_graph_release(graph_handle, number);
        result != CUDA_SUCCESS) {
      return result;
    }
  }
  return CUDA_SUCCESS;
}

}  // extern "C"
