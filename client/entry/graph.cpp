// Graphs: launching, lifetime and user objects. What a graph is made of is in graph_nodes.cpp; the rest
// of the family is generated.

#include <cuda.h>

#include <algorithm>
#include <memory>

#include "client/memory/mirror.h"
#include "client/session/graph_state.h"
#include "client/session/process.h"
#include "client/session/progress.h"
#include "generated/client/forward.h"

namespace rcuda::client {

HeldObjects::~HeldObjects() {
  for (const Held& reference : held) (void)release_user_object(reference.object, reference.count);
}

GraphState* graph_state(Object* graph) {
  if (!graph->extra) graph->extra = new GraphState;
  return static_cast<GraphState*>(graph->extra);
}

NodeState* node_state(Object* node) {
  if (!node->extra) node->extra = new NodeState;
  return static_cast<NodeState*>(node->extra);
}

bool release_user_object(Object* object, unsigned count) {
  auto* user = static_cast<UserObject*>(object->extra);
  unsigned have = user->references.load();
  do {
    if (have < count) return false;
  } while (!user->references.compare_exchange_weak(have, have - count));
  if (have > count) return true;
  user->destroy(user->pointer);
  delete user;
  retire_object(object);
  return true;
}

namespace {

CUresult find(const void* handle, wire::Kind kind, Object** object) {
  if (CUresult result = Process::get().check(); result != CUDA_SUCCESS) return result;
  *object = find_object(handle, kind);
  return *object ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

void share_objects(CUgraph graph, CUgraphExec executable) {
  const Object* from = find_object(graph, wire::Kind::kGraph);
  Object* to = find_object(executable, wire::Kind::kGraphExec);
  if (!from || !to || !from->extra) return;
  graph_state(to)->objects = static_cast<GraphState*>(from->extra)->objects;
}

// The state is deleted after the handle is gone: a user object's destructor may look at it.
std::unique_ptr<GraphState> take_state(Object* graph) {
  std::unique_ptr<GraphState> state(static_cast<GraphState*>(graph->extra));
  graph->extra = nullptr;
  return state;
}

}  // namespace
}  // namespace rcuda::client

using namespace rcuda::client;  // NOLINT: entry points live outside every namespace
namespace wire = rcuda::wire;

extern "C" {

CUresult cuGraphDestroy(CUgraph handle) {
  Object* graph;
  if (CUresult result = find(handle, wire::Kind::kGraph, &graph); result != CUDA_SUCCESS) return result;
  const auto state = take_state(graph);
  return forward_cuGraphDestroy(handle);
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec* executable, CUgraph graph,
                                     unsigned long long flags) {
  const CUresult result = forward_cuGraphInstantiateWithFlags(executable, graph, flags);
  if (result == CUDA_SUCCESS) share_objects(graph, *executable);
  return result;
}

CUresult cuGraphInstantiateWithParams(CUgraphExec* executable, CUgraph graph,
                                      CUDA_GRAPH_INSTANTIATE_PARAMS* parameters) {
  const CUresult result = forward_cuGraphInstantiateWithParams(executable, graph, parameters);
  if (result == CUDA_SUCCESS) share_objects(graph, *executable);
  return result;
}

CUresult cuGraphExecDestroy(CUgraphExec handle) {
  Object* executable;
  if (CUresult result = find(handle, wire::Kind::kGraphExec, &executable); result != CUDA_SUCCESS) {
    return result;
  }
  const auto state = take_state(executable);
  return forward_cuGraphExecDestroy(handle);
}

CUresult cuGraphExecUpdate_v2(CUgraphExec executable, CUgraph graph,
                              CUgraphExecUpdateResultInfo* info) {
  const CUresult result = forward_cuGraphExecUpdate_v2(executable, graph, info);
  if (result == CUDA_SUCCESS) share_objects(graph, executable);
  return result;
}

CUresult cuGraphLaunch(CUgraphExec executable, CUstream stream) {
  graph_launched();
  Target target;
  wire::ObjectId id;
  if (CUresult result = resolve(stream, wire::Kind::kStream, &target, &id); result != CUDA_SUCCESS) {
    return result;
  }
  if (CUresult result = push_mirrors(*target.session, target.context, id); result != CUDA_SUCCESS) {
    return result;
  }
  return forward_cuGraphLaunch(executable, stream);
}

// ---- user objects ------------------------------------------------------------------------------

CUresult cuUserObjectCreate(CUuserObject* object, void* pointer, CUhostFn destroy, unsigned references,
                            unsigned flags) {
  if (CUresult result = Process::get().check(); result != CUDA_SUCCESS) return result;
  if (!object || !destroy || references == 0 || flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC) {
    return CUDA_ERROR_INVALID_VALUE;
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
  if (!(flags & CU_GRAPH_USER_OBJECT_MOVE)) {
    static_cast<UserObject*>(object->extra)->references.fetch_add(count);
  }
  graph_state(graph)->objects->held.push_back({object, count});
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
  auto& held = graph_state(graph)->objects->held;
  const auto found = std::find_if(held.begin(), held.end(), [&](const HeldObjects::Held& reference) {
    return reference.object == object && reference.count >= count;
  });
  if (count == 0 || found == held.end()) return CUDA_ERROR_INVALID_VALUE;
  found->count -= count;
  if (found->count == 0) held.erase(found);
  (void)release_user_object(object, count);
  return CUDA_SUCCESS;
}

}  // extern "C"
