#include "server/executor/metering/graph_meter.h"

#include <algorithm>

namespace rcuda::server {

GraphMeter::GraphMeter(const api::DriverTable& driver, MemoryMeter& meter,
                       const std::vector<SessionDevice>& devices)
    : driver_(driver), meter_(meter) {
  for (const SessionDevice& device : devices) booked_.emplace(device.device, 0);
}

uint64_t GraphMeter::size_of(CUdevice device, uint64_t otherwise) const {
  cuuint64_t bytes = 0;
  return driver_.cuDeviceGetGraphMemAttribute(device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT,
                                              &bytes) == CUDA_SUCCESS
             ? bytes
             : otherwise;
}

// Whether the graph may allocate memory. The bodies of conditional nodes are not searched, so a
// graph with such nodes counts as allocating. So does a graph whose query fails.
bool GraphMeter::allocates(CUgraph graph) const {
  size_t count = 0;
  if (driver_.cuGraphGetNodes(graph, nullptr, &count) != CUDA_SUCCESS) return true;
  std::vector<CUgraphNode> nodes(count);
  if (count && driver_.cuGraphGetNodes(graph, nodes.data(), &count) != CUDA_SUCCESS) return true;
  return std::any_of(nodes.begin(), nodes.end(), [&](CUgraphNode node) {
    CUgraphNodeType type{};
    if (driver_.cuGraphNodeGetType(node, &type) != CUDA_SUCCESS) return true;
    if (type == CU_GRAPH_NODE_TYPE_GRAPH) {
      CUgraph child = nullptr;
      return driver_.cuGraphChildGraphNodeGetGraph(node, &child) != CUDA_SUCCESS ||
             allocates(child);
    }
    return type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || type == CU_GRAPH_NODE_TYPE_CONDITIONAL;
  });
}

void GraphMeter::made(CUgraphExec executable, CUgraph graph) {
  destroyed(executable);  // an earlier executable with the same handle
  if (!allocates(graph)) without_memory_.insert(executable);
}

void GraphMeter::destroyed(CUgraphExec executable) {
  prepared_.erase(executable);
  without_memory_.erase(executable);
}

CUresult GraphMeter::prepare(CUgraphExec executable, CUstream stream) {
  if (prepared_.contains(executable) || !has_memory(executable)) return CUDA_SUCCESS;
  CUresult result = driver_.cuGraphUpload(executable, stream);
  if (result == CUDA_SUCCESS && !try_book()) {
    meter_.reclaim();
    // reclaim() may also have released the memory of this executable.
    result = driver_.cuGraphUpload(executable, stream);
    if (result == CUDA_SUCCESS && !book()) result = CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (result == CUDA_SUCCESS) prepared_.insert(executable);
  return result;
}

bool GraphMeter::book_growth() {
  if (try_book()) return true;
  meter_.reclaim();
  return book();
}

bool GraphMeter::try_book() {
  for (auto& [device, booked] : booked_) {
    const uint64_t size = size_of(device, booked);
    // Calls try_take() also for a growth of 0, because book() also books memory that does not fit:
    // try_take() then fails until the bookings are within the limit again.
    if (size && size >= booked && !meter_.try_take(device, size - booked)) return false;
    if (size < booked) meter_.give(device, booked - size);
    booked = size;
  }
  return true;
}

bool GraphMeter::book() {
  if (try_book()) return true;
  for (auto& [device, booked] : booked_) {
    const uint64_t size = size_of(device, booked);
    if (size <= booked) continue;
    meter_.warn(device, size - booked);
    meter_.add(device, size - booked);
    booked = size;
  }
  return false;
}

void GraphMeter::refresh() {
  for (auto& [device, booked] : booked_) {
    if (booked == 0) continue;
    const uint64_t size = size_of(device, booked);
    if (size >= booked) continue;
    meter_.give(device, booked - size);
    booked = size;
  }
}

void GraphMeter::trim() {
  for (const auto& [device, booked] : booked_) {
    if (size_of(device, 0)) driver_.cuDeviceGraphMemTrim(device);
  }
  trimmed();
  refresh();
}

}  // namespace rcuda::server
