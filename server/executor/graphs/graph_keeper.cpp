#include "server/executor/graphs/graph_keeper.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "server/executor/streams/capture.h"

namespace rcuda::server {
namespace {

void CUDA_CB let_go(void* owner) { delete static_cast<Resource*>(owner); }

}  // namespace

// ---- owners ------------------------------------------------------------------------------------

CUuserObject GraphKeeper::retain(CUgraph graph, Resource resource) {
  CUuserObject object = nullptr;
  auto owner = std::make_unique<Resource>(resource);
  if (graph && driver_.cuUserObjectCreate(&object, owner.get(), &let_go, 1,
                                          CU_USER_OBJECT_NO_DESTRUCTOR_SYNC) == CUDA_SUCCESS) {
    (void)owner.release();
    if (driver_.cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE) ==
        CUDA_SUCCESS) {
      return object;
    }
    driver_.cuUserObjectRelease(object, 1);
  }
  for_session_.push_back(std::move(resource));
  return nullptr;
}

void GraphKeeper::release(CUgraph graph, CUuserObject object) {
  if (object) (void)driver_.cuGraphReleaseUserObject(graph, object, 1);
}

void GraphKeeper::retain_for(CUgraphNode node, Resource resource) {
  (void)retain(graph_of(node), std::move(resource));
}

void GraphKeeper::retain_for(CUgraphExec executable, CUgraphNode node, Resource resource) {
  Resource& place = executables_[executable][node];
  if (place) waiting_.push_back(std::move(place));
  place = std::move(resource);
  // A program may change a node before each launch and never destroy the executable. So the number
  // of waiting resources needs a limit.
  constexpr size_t kMaxWaiting = 16;
  if (waiting_.size() >= kMaxWaiting) drop_waiting();
}

void GraphKeeper::forget(CUgraphExec executable) {
  if (auto found = executables_.find(executable); found != executables_.end()) {
    for (auto& [node, resource] : found->second) waiting_.push_back(std::move(resource));
    executables_.erase(found);
  }
  drop_waiting();
}

// Drops the resources in waiting_ when all contexts are idle: an executable may run in any context.
void GraphKeeper::drop_waiting() {
  ContextState* const before = objects_.current_context();
  if (waiting_.empty() || !before) return;
  auto resources = std::make_shared<std::vector<Resource>>(std::exchange(waiting_, {}));
  // The resources are released with the last copy of this closure.
  const auto when_done = [this, resources](CUresult result) {
    // A context cannot be queried during a capture. So the resources wait until the next call.
    if (result == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED) {
      std::ranges::move(*resources, std::back_inserter(waiting_));
      resources->clear();  // so that a capture in another context does not add them again
    }
  };
  objects_.for_each_context([&](ContextState& context) {
    if (objects_.make_current(context.id) == CUDA_SUCCESS) idle_.when_idle(context, when_done);
  });
  (void)objects_.make_current(before->id);
}

CUresult GraphKeeper::retain_number(CUgraph graph, uint64_t number) {
  struct Entry {
    std::shared_ptr<ClientResource> resource;
    std::shared_ptr<Numbers> numbers;
    ~Entry() {
      MutexLock lock(numbers->mutex);
      numbers->objects.erase(resource->id());
    }
  };
  {
    MutexLock lock(numbers_->mutex);
    if (numbers_->objects.contains(number)) return CUDA_ERROR_INVALID_VALUE;
  }
  auto entry = std::make_shared<Entry>();
  entry->resource = resources_.make(number);
  entry->numbers = numbers_;
  CUuserObject object = retain(graph, std::move(entry));
  // After this error the entry lives until the session ends, so the worker sends no released()
  // event. The client drops its object because of the error.
  if (!object) return CUDA_ERROR_OUT_OF_MEMORY;
  MutexLock lock(numbers_->mutex);
  numbers_->objects[number] = object;
  return CUDA_SUCCESS;
}

CUresult GraphKeeper::release_number(CUgraph graph, uint64_t number) {
  CUuserObject object = nullptr;
  {
    MutexLock lock(numbers_->mutex);
    auto found = numbers_->objects.find(number);
    if (found == numbers_->objects.end()) return CUDA_ERROR_INVALID_VALUE;
    object = found->second;
  }
  return driver_.cuGraphReleaseUserObject(graph, object, 1);
}

// ---- names -------------------------------------------------------------------------------------

std::vector<CUgraphNode> GraphKeeper::nodes_of(CUgraph graph) const {
  size_t count = 0;
  std::vector<CUgraphNode> nodes;
  if (driver_.cuGraphGetNodes(graph, nullptr, &count) != CUDA_SUCCESS) return nodes;
  nodes.resize(count);
  if (count && driver_.cuGraphGetNodes(graph, nodes.data(), &count) != CUDA_SUCCESS) nodes.clear();
  return nodes;
}

bool GraphKeeper::is_known(CUdeviceptr address, CUstream stream) const {
  unsigned type = 0;
  if (driver_.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) ==
      CUDA_SUCCESS) {
    return true;
  }
  const auto allocated_by = [&](CUgraph graph) {
    const std::vector<CUgraphNode> nodes = nodes_of(graph);
    return std::any_of(nodes.begin(), nodes.end(), [&](CUgraphNode node) {
      CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
      CUDA_MEM_ALLOC_NODE_PARAMS memory{};
      return driver_.cuGraphNodeGetType(node, &type) == CUDA_SUCCESS &&
             type == CU_GRAPH_NODE_TYPE_MEM_ALLOC &&
             driver_.cuGraphMemAllocNodeGetParams(node, &memory) == CUDA_SUCCESS &&
             memory.dptr <= address && address - memory.dptr < memory.bytesize;
    });
  };
  if (CUgraph captured = captured_into(driver_, stream); captured && allocated_by(captured))
    return true;
  bool found = false;
  objects_.of(wire::Kind::kGraph).for_each([&](wire::ObjectId, const Object& object) {
    found = found || allocated_by(static_cast<CUgraph>(object.handle));
  });
  return found;
}

CUgraph GraphKeeper::child_of(CUgraphNode node) const {
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  CUgraph child = nullptr;
  if (driver_.cuGraphNodeGetType(node, &type) == CUDA_SUCCESS && type == CU_GRAPH_NODE_TYPE_GRAPH) {
    (void)driver_.cuGraphChildGraphNodeGetGraph(node, &child);
  }
  return child;
}

void GraphKeeper::note_bodies(CUgraphNode node, std::vector<CUgraph> bodies) {
  bodies_[node] = std::move(bodies);
}

std::vector<CUgraph> GraphKeeper::bodies_of(CUgraphNode node) const {
  const auto found = bodies_.find(node);
  if (found == bodies_.end()) return {};
  // The node may have ended with a capture, and another node may have its handle.
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  const bool is_conditional = driver_.cuGraphNodeGetType(node, &type) == CUDA_SUCCESS &&
                              type == CU_GRAPH_NODE_TYPE_CONDITIONAL;
  return is_conditional ? found->second : std::vector<CUgraph>();
}

// Searches only the graphs that the client knows, because the client names no nodes of other
// graphs.
CUgraph GraphKeeper::graph_of(CUgraphNode node) {
  CUgraph graph = nullptr;
  objects_.of(wire::Kind::kGraph).for_each([&](wire::ObjectId, const Object& object) {
    if (graph) return;
    const auto candidate = static_cast<CUgraph>(object.handle);
    for (const CUgraphNode other : nodes_of(candidate)) {
      if (other == node) graph = candidate;
    }
  });
  return graph;
}

void GraphKeeper::collect(CUgraph graph, Names* names) const {
  for (const CUgraphNode node : nodes_of(graph)) {
    collect(node, names);
    names->nodes.push_back(node);
  }
}

void GraphKeeper::collect(CUgraphNode node, Names* names) const {
  std::vector<CUgraph> inner = bodies_of(node);
  if (const CUgraph child = child_of(node)) inner.push_back(child);
  for (const CUgraph graph : inner) {
    collect(graph, names);
    names->children.push_back(graph);
  }
}

GraphKeeper::Names GraphKeeper::names_in(CUgraph graph) const {
  Names names;
  collect(graph, &names);
  return names;
}

GraphKeeper::Names GraphKeeper::names_in(CUgraphNode node) const {
  Names names;
  collect(node, &names);
  return names;
}

void GraphKeeper::forget(const Names& names) {
  for (const CUgraphNode node : names.nodes) {
    objects_.of(wire::Kind::kGraphNode).unbind_handle(node);
  }
  std::erase_if(bodies_, [&](const auto& entry) {
    return std::find(names.children.begin(), names.children.end(), entry.second.front()) !=
           names.children.end();
  });
  for (const CUgraph child : names.children) {
    objects_.of(wire::Kind::kGraph).unbind_handle(child);
  }
}

}  // namespace rcuda::server
