#include "server/executor/graphs/graph_copies.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "common/base/mutex.h"
#include "common/cuda/return_if_error.h"
#include "server/executor/graphs/copy_range.h"
#include "server/executor/streams/capture.h"

namespace rcuda::server {
namespace {

// The work that one side of a copy needs.
struct SideWork {
  std::shared_ptr<Transfers::Transfer> transfer;  // null: no bytes have to move over the Link
  Transfers::Piece first;                         // the first piece of `transfer`
  std::shared_ptr<ClientResource> client;  // of a stand-in; null: the memory is not a stand-in
  bool empty() const { return !transfer && !client; }
};

// The bytes that the copy touches on this side, as contiguous pieces. The driver has accepted the
// shape, so its numbers do not overflow.
std::vector<Transfers::Piece> pieces_of(const CopySide& side, const CUDA_MEMCPY3D& copy) {
  std::vector<Transfers::Piece> pieces;
  for (uint64_t z = 0; z < copy.Depth; ++z) {
    for (uint64_t y = 0; y < copy.Height; ++y) {
      const uint64_t address = side.row(y, z);
      if (!pieces.empty() && pieces.back().address + pieces.back().bytes == address) {
        pieces.back().bytes += copy.WidthInBytes;
      } else {
        pieces.push_back({address, copy.WidthInBytes});
      }
    }
  }
  return pieces;
}

// Mirrored memory needs no transfer: the client keeps it equal before and after each launch.
bool is_mirrored(const Mirrors& mirrors, const Transfers::Piece& piece) {
  return mirrors.covers(piece.address, piece.bytes);
}

SideWork work_of(const GraphCopies::Parts& parts, const CopySide& side, const CUDA_MEMCPY3D& copy,
                 bool to_client) {
  if (side.type == CU_MEMORYTYPE_ARRAY || copy.WidthInBytes == 0) return {};
  const HostMemory::Range* range = parts.host_memory.find(side.base, 1);
  std::vector<Transfers::Piece> pieces;
  if (!range && (side.x_bytes || side.y || side.z)) {
    pieces = pieces_of(side, copy);  // the base may lie before the first byte touched
    range = pieces.empty() ? nullptr : parts.host_memory.find(pieces.front().address, 1);
  }
  if (!range) return {};
  SideWork work;
  work.client = range->resource.lock();
  if (range->shadow) {
    if (pieces.empty()) pieces = pieces_of(side, copy);
    if (!pieces.empty() && !is_mirrored(parts.mirrors, pieces.front())) {
      work.transfer = parts.transfers.prepare(to_client, pieces);
      work.first = pieces.front();
    }
  }
  return work;
}

CUresult neighbours(const api::DriverTable& driver, CUgraphNode node, bool dependents,
                    std::vector<CUgraphNode>* nodes) {
  const auto ask = [&](CUgraphNode* out, CUgraphEdgeData* edges, size_t* count) {
    return dependents ? driver.cuGraphNodeGetDependentNodes_v2(node, out, edges, count)
                      : driver.cuGraphNodeGetDependencies_v2(node, out, edges, count);
  };
  size_t count = 0;
  RCUDA_RETURN_IF_CUDA_ERROR(ask(nullptr, nullptr, &count));
  nodes->resize(count);
  std::vector<CUgraphEdgeData> edges(count);
  return count ? ask(nodes->data(), edges.data(), &count) : CUDA_SUCCESS;
}

}  // namespace

// The work around one copy. Two owners keep it as long as an executable contains the copy: an entry
// of executables_, and a user object of the driver (Dressing::owner_), which lives until the last
// launch has ended. The mutex guards `source` and `destination`, because a change of the executable
// replaces them while an earlier launch may be in progress.
struct GraphCopies::Steps {
  struct Step {
    Steps* steps;
    bool after;
  };

  explicit Steps(const Parts& all) : parts(all) {}

  const Parts parts;
  CUgraphNode node = nullptr;  // the copy, in the graph that the executable was made from
  size_t position = 0;         // among that graph's copies
  bool has_before = false, has_after = false;  // host nodes that work before, after the copy
  Mutex mutex;  // guards `source` and `destination` once the executable exists
  SideWork source, destination;
  Step before_copy{this, false}, after_copy{this, true};

  static void CUDA_CB run(void* argument) {
    const Step& step = *static_cast<Step*>(argument);
    carry_out(step.steps->parts, step.steps->work(step.after), step.after);
  }

  SideWork work(bool after) {
    MutexLock lock(mutex);
    return after ? destination : source;
  }

  static void carry_out(const Parts& parts, const SideWork& work, bool after) {
    HostCallbacks& callbacks = parts.host_callbacks;
    if (!after && work.client) callbacks.run_internal(work.client->id());
    // Checked again: memory becomes mirrored when a kernel gets its address, which may be after the
    // graph was instantiated.
    if (work.transfer && !is_mirrored(parts.mirrors, work.first)) {
      Transfers::carry_out(*work.transfer);
    }
    if (after && work.client) callbacks.run_internal(work.client->id());
  }
};

namespace {

// The work of one side around one launch.
struct AroundLaunch {
  GraphCopies::Parts parts;
  SideWork work;
  bool after;
};

}  // namespace

GraphCopies::~GraphCopies() = default;

std::shared_ptr<GraphCopies::Steps> GraphCopies::plan(CUgraphNode node, const CUDA_MEMCPY3D& copy) {
  auto steps = std::make_shared<Steps>(parts_);
  steps->node = node;
  steps->source = work_of(parts_, source_of(copy), copy, false);
  steps->destination = work_of(parts_, destination_of(copy), copy, true);
  return steps;
}

template <typename Matches>
GraphCopies::Steps* GraphCopies::find(CUgraphExec executable, Matches matches) const {
  const auto found = executables_.find(executable);
  if (found == executables_.end()) return nullptr;
  for (const auto& steps : found->second.steps) {
    if (matches(*steps)) return steps.get();
  }
  return nullptr;
}

// ---- dressing ----------------------------------------------------------------------------------

GraphCopies::Dressing::Dressing(GraphCopies& copies, CUgraph graph, CUgraphExec like,
                                CUgraphNode child)
    : copies_(copies), graph_(graph), like_(like) {
  copies_.list_copies(graph, &nodes_);
  if (CUgraph replaced = child ? copies_.graph_keeper_.child_of(child) : nullptr) {
    std::vector<CUgraphNode> before;
    copies_.list_copies(replaced, &before);
    const std::vector<CUgraphNode>& all = copies_.executables_[like].copies;
    if (!before.empty()) {
      first_ = static_cast<size_t>(std::find(all.begin(), all.end(), before.front()) - all.begin());
    }
  }
  const auto known = copies_.executables_.find(like);
  const bool like_has_nodes = known != copies_.executables_.end() && !known->second.steps.empty();
  if (!like_has_nodes && !copies_.parts_.host_memory.any_for_graphs()) return;
  result_ = dress(graph, false);
  if (steps_.empty()) return;
  owner_ = copies_.graph_keeper_.retain(
      graph, std::make_shared<std::vector<std::shared_ptr<Steps>>>(steps_));
}

GraphCopies::Dressing::~Dressing() {
  const api::DriverTable& driver = copies_.driver_;
  bool undressed = true;
  for (auto added = added_.rbegin(); added != added_.rend(); ++added) {
    undressed &= driver.cuGraphDestroyNode(added->node) == CUDA_SUCCESS;
  }
  // A driver removes no nodes from graphs that allocate memory. There the host nodes stay, so the
  // graph keeps the owner of their Steps.
  if (undressed) copies_.graph_keeper_.release(graph_, owner_);
}

CUgraphNode GraphCopies::Dressing::named(CUgraphNode node) const {
  for (const Added& added : added_) {
    if (added.node == node) return added.copy;
  }
  return node;
}

CUresult GraphCopies::Dressing::dress(CUgraph graph, bool in_body) {
  for (const CUgraphNode node : copies_.graph_keeper_.nodes_of(graph)) {
    CUresult result = CUDA_SUCCESS;
    if (CUgraph child = copies_.graph_keeper_.child_of(node)) {
      result = dress(child, in_body);
    } else if (dressed_ < nodes_.size() && nodes_[dressed_] == node) {
      result = dress(graph, node, in_body);
      ++dressed_;
    }
    for (const CUgraph body : copies_.graph_keeper_.bodies_of(node)) {
      if (result == CUDA_SUCCESS) result = dress(body, true);
    }
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

CUresult GraphCopies::Dressing::dress(CUgraph graph, CUgraphNode node, bool in_body) {
  CUDA_MEMCPY3D copy{};
  if (copies_.driver_.cuGraphMemcpyNodeGetParams(node, &copy) != CUDA_SUCCESS) {
    return CUDA_SUCCESS;
  }
  std::shared_ptr<Steps> steps = copies_.plan(node, copy);
  steps->position = first_ + dressed_;
  bool before = !steps->source.empty(), after = !steps->destination.empty();
  const bool is_needed = before || after;
  if (in_body) return is_needed ? dress_in_body(copy, std::move(steps)) : CUDA_SUCCESS;
  if (like_) {
    const Steps* had =
        copies_.find(like_, [&](const Steps& known) { return known.position == steps->position; });
    before = had && had->has_before;
    after = had && had->has_after;
  }
  if (!is_needed && !before && !after) return CUDA_SUCCESS;
  steps_.push_back(steps);
  if (before) RCUDA_RETURN_IF_CUDA_ERROR(add_host_node(graph, node, *steps, false));
  return after ? add_host_node(graph, node, *steps, true) : CUDA_SUCCESS;
}

// CUDA allows no host nodes in the body of a conditional node, so the work is done around the
// launch.
CUresult GraphCopies::Dressing::dress_in_body(const CUDA_MEMCPY3D& copy,
                                              std::shared_ptr<Steps> steps) {
  // A driver refuses pageable memory in bodies.
  if (steps->source.client || steps->destination.client) return CUDA_ERROR_INVALID_VALUE;
  steps_.push_back(steps);
  if (steps->destination.empty()) return CUDA_SUCCESS;
  // If the body does not run, the bytes that go back after the launch must be the client's own. So
  // the destination is also fetched before the launch.
  auto kept = std::make_shared<Steps>(copies_.parts_);
  kept->position = steps->position;
  kept->source = work_of(copies_.parts_, destination_of(copy), copy, false);
  steps_.push_back(std::move(kept));
  return CUDA_SUCCESS;
}

// Adds the host node before or after a copy. The application's nodes and edges stay, and the host
// node is removed later with its edges, so the order in which a driver lists the application's
// nodes and edges does not change.
CUresult GraphCopies::Dressing::add_host_node(CUgraph graph, CUgraphNode copy, Steps& steps,
                                              bool after) {
  const api::DriverTable& driver = copies_.driver_;
  std::vector<CUgraphNode> dependencies{copy}, dependents{copy};
  RCUDA_RETURN_IF_CUDA_ERROR(neighbours(driver, copy, after, after ? &dependents : &dependencies));
  const CUDA_HOST_NODE_PARAMS call{&Steps::run, after ? &steps.after_copy : &steps.before_copy};
  CUgraphNode node = nullptr;
  RCUDA_RETURN_IF_CUDA_ERROR(
      driver.cuGraphAddHostNode(&node, graph, dependencies.data(), dependencies.size(), &call));
  added_.push_back({node, copy});
  (after ? steps.has_after : steps.has_before) = true;
  for (const CUgraphNode dependent : dependents) {
    RCUDA_RETURN_IF_CUDA_ERROR(
        driver.cuGraphAddDependencies_v2(graph, &node, &dependent, nullptr, 1));
  }
  return CUDA_SUCCESS;
}

// ---- executables -------------------------------------------------------------------------------

void GraphCopies::list_copies(CUgraph graph, std::vector<CUgraphNode>* nodes) const {
  const api::DriverTable& driver = driver_;
  for (const CUgraphNode node : graph_keeper_.nodes_of(graph)) {
    CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
    if (driver.cuGraphNodeGetType(node, &type) != CUDA_SUCCESS) continue;
    if (type == CU_GRAPH_NODE_TYPE_MEMCPY) nodes->push_back(node);
    if (type == CU_GRAPH_NODE_TYPE_GRAPH) {
      if (CUgraph child = graph_keeper_.child_of(node)) list_copies(child, nodes);
    }
    for (const CUgraph body : graph_keeper_.bodies_of(node)) list_copies(body, nodes);
  }
}

void GraphCopies::instantiated(CUgraphExec executable, const Dressing& dressing) {
  if (dressing.nodes_.empty()) return;
  Executable& known = executables_[executable];
  known = {dressing.nodes_, dressing.steps_, {}};
  count(dressing.nodes_, 0, &known);
}

void GraphCopies::count(const std::vector<CUgraphNode>& nodes, size_t first,
                        Executable* executable) const {
  if (!counts_) return;
  executable->bytes.resize(std::max(executable->bytes.size(), first + nodes.size()));
  for (size_t i = 0; i < nodes.size(); ++i) {
    CUDA_MEMCPY3D copy{};
    const bool read = driver_.cuGraphMemcpyNodeGetParams(nodes[i], &copy) == CUDA_SUCCESS;
    executable->bytes[first + i] = read ? clients_bytes(copy) : 0;
  }
}

uint64_t GraphCopies::clients_bytes(const CUDA_MEMCPY3D& copy) const {
  const auto is_clients = [&](const CopySide& side) {
    if (side.type == CU_MEMORYTYPE_ARRAY || side.type == CU_MEMORYTYPE_HOST) {
      return side.type == CU_MEMORYTYPE_HOST;
    }
    return parts_.host_memory.find(side.row(0, 0), 1) != nullptr;
  };
  if (!is_clients(source_of(copy)) && !is_clients(destination_of(copy))) return 0;
  return extent_of(copy).volume();
}

uint64_t GraphCopies::launch_bytes(CUgraphExec executable) const {
  const auto found = executables_.find(executable);
  if (found == executables_.end()) return 0;
  return std::accumulate(found->second.bytes.begin(), found->second.bytes.end(), uint64_t{0});
}

void GraphCopies::updated(CUgraphExec executable, const Dressing& dressing) {
  Executable& known = executables_[executable];
  const size_t first = dressing.first_, end = first + dressing.nodes_.size();
  std::erase_if(known.steps, [=](const std::shared_ptr<Steps>& steps) {
    return steps->position >= first && steps->position < end;
  });
  for (const std::shared_ptr<Steps>& steps : dressing.steps_) {
    // The application still names the nodes of the graph that it instantiated.
    if (steps->position < known.copies.size()) steps->node = known.copies[steps->position];
    known.steps.push_back(steps);
  }
  count(dressing.nodes_, first, &known);
}

void GraphCopies::changed(CUgraphExec executable, CUgraphNode node, const CUDA_MEMCPY3D& copy) {
  const std::shared_ptr<Steps> now = plan(node, copy);
  Executable& known = executables_[executable];
  now->position = static_cast<size_t>(std::find(known.copies.begin(), known.copies.end(), node) -
                                      known.copies.begin());
  if (now->position < known.bytes.size()) {
    known.bytes[now->position] = clients_bytes(copy);
  }
  Steps* steps = find(executable, [=](const Steps& each) { return each.node == node; });
  if (!steps) {
    if (!now->source.empty() || !now->destination.empty()) known.steps.push_back(now);
    return;
  }
  MutexLock lock(steps->mutex);
  std::swap(steps->source, now->source);
  std::swap(steps->destination, now->destination);
}

CUresult GraphCopies::launch(CUgraphExec executable, CUstream stream) {
  const api::DriverTable& driver = driver_;
  std::vector<std::unique_ptr<AroundLaunch>> around[2];
  if (const auto found = executables_.find(executable); found != executables_.end()) {
    for (const std::shared_ptr<Steps>& steps : found->second.steps) {
      for (const bool after : {false, true}) {
        if (after ? steps->has_after : steps->has_before) continue;
        SideWork work = steps->work(after);
        if (work.empty()) continue;
        around[after].push_back(
            std::make_unique<AroundLaunch>(AroundLaunch{parts_, std::move(work), after}));
      }
    }
  }
  if ((!around[0].empty() || !around[1].empty()) && captured_into(driver, stream)) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  const auto queue = [&](std::vector<std::unique_ptr<AroundLaunch>>& all) {
    for (std::unique_ptr<AroundLaunch>& one : all) {
      const CUhostFn run = [](void* argument) {
        const std::unique_ptr<AroundLaunch> own(static_cast<AroundLaunch*>(argument));
        Steps::carry_out(own->parts, own->work, own->after);
      };
      RCUDA_RETURN_IF_CUDA_ERROR(driver.cuLaunchHostFunc(stream, run, one.get()));
      (void)one.release();
    }
    return CUDA_SUCCESS;
  };
  CUresult result = queue(around[0]);
  if (result == CUDA_SUCCESS) result = driver.cuGraphLaunch(executable, stream);
  return result == CUDA_SUCCESS ? queue(around[1]) : result;
}

}  // namespace rcuda::server
