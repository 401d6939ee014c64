#include "server/executor/graph_keeper.h"

#include <utility>

#include "api/server_handlers.h"
#include "server/executor/executor.h"
#include "server/executor/host_callbacks.h"

namespace rcuda::server {
namespace {

void CUDA_CB let_go(void* owner) { delete static_cast<Kept*>(owner); }

}  // namespace

CUgraph GraphKeeper::captured_into(CUstream stream) const {
  const api::DriverTable& driver = executor_.driver();
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (!driver.cuStreamIsCapturing || driver.cuStreamIsCapturing(stream, &status) != CUDA_SUCCESS ||
      status != CU_STREAM_CAPTURE_STATUS_ACTIVE) {
    return nullptr;
  }
  cuuint64_t id = 0;
  CUgraph graph = nullptr;
  if (driver.cuStreamGetCaptureInfo_v3) {
    const CUgraphNode* tips = nullptr;
    const CUgraphEdgeData* edges = nullptr;
    size_t count = 0;
    (void)driver.cuStreamGetCaptureInfo_v3(stream, &status, &id, &graph, &tips, &edges, &count);
  } else if (driver.cuStreamGetCaptureInfo_v2) {
    (void)driver.cuStreamGetCaptureInfo_v2(stream, &status, &id, &graph, nullptr, nullptr);
  }
  return graph;
}

// ---- owners ------------------------------------------------------------------------------------

CUuserObject GraphKeeper::retain(CUgraph graph, Kept kept) {
  const api::DriverTable& driver = executor_.driver();
  CUuserObject object = nullptr;
  auto owner = std::make_unique<Kept>(kept);
  if (graph && driver.cuUserObjectCreate && driver.cuGraphRetainUserObject &&
      driver.cuUserObjectCreate(&object, owner.get(), &let_go, 1,
                                CU_USER_OBJECT_NO_DESTRUCTOR_SYNC) == CUDA_SUCCESS) {
    (void)owner.release();
    if (driver.cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE) ==
        CUDA_SUCCESS) {
      return object;
    }
    driver.cuUserObjectRelease(object, 1);
  }
  for_session_.push_back(std::move(kept));
  return nullptr;
}

void GraphKeeper::release(CUgraph graph, CUuserObject object) {
  if (object) (void)executor_.driver().cuGraphReleaseUserObject(graph, object, 1);
}

void GraphKeeper::retain_for(CUgraphNode node, Kept kept) {
  (void)retain(graph_of(node), std::move(kept));
}

void GraphKeeper::retain_for(CUgraphExec executable, CUgraphNode node, Kept kept) {
  Kept& place = executables_[executable][node];
  if (place) waiting_.push_back(std::move(place));
  place = std::move(kept);
}

void GraphKeeper::forget(CUgraphExec executable) {
  if (auto found = executables_.find(executable); found != executables_.end()) {
    for (auto& [node, kept] : found->second) waiting_.push_back(std::move(kept));
    executables_.erase(found);
  }
  ContextState* context = executor_.current_context();
  if (waiting_.empty() || !context) return;
  auto kept = std::make_shared<std::vector<Kept>>(std::exchange(waiting_, {}));
  executor_.when_idle(*context, [this, kept](CUresult result) {
    // Nothing can be said while something captures: they wait for the next executable's end.
    if (result == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED) {
      waiting_.insert(waiting_.end(), kept->begin(), kept->end());
    }
  });
}

CUresult GraphKeeper::retain_number(CUgraph graph, uint64_t number) {
  struct Entry {
    std::shared_ptr<ClientResource> resource;
    std::shared_ptr<Numbers> numbers;
    ~Entry() {
      std::lock_guard lock(numbers->mutex);
      numbers->objects.erase(resource->id());
    }
  };
  auto entry = std::make_shared<Entry>();
  entry->resource = executor_.host_callbacks().make_resource(number);
  entry->numbers = numbers_;
  CUuserObject object = retain(graph, std::move(entry));
  std::lock_guard lock(numbers_->mutex);
  if (object) numbers_->objects[number] = object;
  return CUDA_SUCCESS;
}

CUresult GraphKeeper::release_number(CUgraph graph, uint64_t number) {
  CUuserObject object = nullptr;
  {
    std::lock_guard lock(numbers_->mutex);
    auto found = numbers_->objects.find(number);
    if (found == numbers_->objects.end()) return CUDA_ERROR_INVALID_VALUE;
    object = found->second;
  }
  return executor_.driver().cuGraphReleaseUserObject(graph, object, 1);
}

// ---- names -------------------------------------------------------------------------------------

std::vector<CUgraphNode> GraphKeeper::nodes_of(CUgraph graph) const {
  const api::DriverTable& driver = executor_.driver();
  size_t count = 0;
  std::vector<CUgraphNode> nodes;
  if (!driver.cuGraphGetNodes || driver.cuGraphGetNodes(graph, nullptr, &count) != CUDA_SUCCESS) {
    return nodes;
  }
  nodes.resize(count);
  if (count && driver.cuGraphGetNodes(graph, nodes.data(), &count) != CUDA_SUCCESS) nodes.clear();
  return nodes;
}

bool GraphKeeper::is_known(CUdeviceptr address, CUstream stream) const {
  const api::DriverTable& driver = executor_.driver();
  unsigned type = 0;
  if (driver.cuPointerGetAttribute == nullptr) return false;
  if (driver.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) ==
      CUDA_SUCCESS) {
    return true;
  }
  if (!driver.cuGraphMemAllocNodeGetParams || !driver.cuGraphNodeGetType) return false;
  const auto allocated_by = [&](CUgraph graph) {
    const std::vector<CUgraphNode> nodes = nodes_of(graph);
    return std::any_of(nodes.begin(), nodes.end(), [&](CUgraphNode node) {
      CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
      CUDA_MEM_ALLOC_NODE_PARAMS memory{};
      return driver.cuGraphNodeGetType(node, &type) == CUDA_SUCCESS &&
             type == CU_GRAPH_NODE_TYPE_MEM_ALLOC &&
             driver.cuGraphMemAllocNodeGetParams(node, &memory) == CUDA_SUCCESS &&
             memory.dptr <= address && address - memory.dptr < memory.bytesize;
    });
  };
  if (CUgraph captured = captured_into(stream); captured && allocated_by(captured)) return true;
  bool found = false;
  executor_.objects(wire::Kind::kGraph).for_each([&](wire::ObjectId, const Object& object) {
    found = found || allocated_by(static_cast<CUgraph>(object.handle));
  });
  return found;
}

CUgraph GraphKeeper::child_of(CUgraphNode node) const {
  const api::DriverTable& driver = executor_.driver();
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  CUgraph child = nullptr;
  if (driver.cuGraphNodeGetType && driver.cuGraphNodeGetType(node, &type) == CUDA_SUCCESS &&
      type == CU_GRAPH_NODE_TYPE_GRAPH && driver.cuGraphChildGraphNodeGetGraph) {
    (void)driver.cuGraphChildGraphNodeGetGraph(node, &child);
  }
  return child;
}

// The client holds a node only of a graph that it knows.
CUgraph GraphKeeper::graph_of(CUgraphNode node) {
  CUgraph graph = nullptr;
  executor_.objects(wire::Kind::kGraph).for_each([&](wire::ObjectId, const Object& object) {
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
  const CUgraph child = child_of(node);
  if (!child) return;
  collect(child, names);
  names->children.push_back(child);
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
    executor_.objects(wire::Kind::kGraphNode).unbind_handle(node);
  }
  for (const CUgraph child : names.children) {
    executor_.objects(wire::Kind::kGraph).unbind_handle(child);
  }
}

}  // namespace rcuda::server
