#include "softgpu/driver/capture.h"

#include <algorithm>
#include <atomic>
#include <set>
#include <utility>

#include "softgpu/driver/context.h"
#include "softgpu/driver/event.h"
#include "softgpu/driver/stream.h"

namespace softgpu::driver {
namespace {

// Captures that have begun and not ended, guarded by graph_mutex(). Their count lets the common
// case, no capture, pass without the lock.
std::vector<std::shared_ptr<Capture>>& active_captures() {
  static auto* captures = new std::vector<std::shared_ptr<Capture>>;
  return *captures;
}
std::atomic<int> active_count{0};
uint64_t next_capture_id = 1;

thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

void join(Stream& stream, const std::shared_ptr<Capture>& capture, std::vector<GraphEdge> tips) {
  stream.capture = std::make_unique<StreamCapture>();
  stream.capture->capture = capture;
  stream.capture->tips = std::move(tips);
  stream.capturing_flag.store(true, std::memory_order_release);
  if (stream.kind() != Stream::Kind::kNonBlocking) {
    streams_of(stream.context()).blocking_captures.fetch_add(1);
  }
  capture->streams.push_back(stream.shared_from_this());
}

void leave(Stream& stream) {
  stream.capture.reset();
  stream.capturing_flag.store(false, std::memory_order_release);
  if (stream.kind() != Stream::Kind::kNonBlocking && !stream.closed()) {
    streams_of(stream.context()).blocking_captures.fetch_sub(1);
  }
}

void finish(const std::shared_ptr<Capture>& capture) {
  for (const auto& stream : capture->streams) leave(*stream);
  capture->streams.clear();
  capture->graph->capturing = false;
  std::erase(active_captures(), capture);
  active_count.fetch_sub(1);
}

bool add_tip(std::vector<GraphEdge>& tips, GraphNode* node) {
  if (std::any_of(tips.begin(), tips.end(), [&](const GraphEdge& tip) { return tip.node == node; }))
    return false;
  tips.push_back({node});
  return true;
}

bool joined(const Capture& capture) {
  std::set<const GraphNode*> reached;
  std::vector<const GraphNode*> open;
  auto visit = [&](const std::vector<GraphEdge>& edges) {
    for (const GraphEdge& edge : edges) {
      if (reached.insert(edge.node).second) open.push_back(edge.node);
    }
  };
  visit(capture.origin->capture->tips);
  while (!open.empty()) {
    const GraphNode* node = open.back();
    open.pop_back();
    visit(node->dependencies);
  }
  const auto are_reached = [&](const std::vector<GraphEdge>& tips) {
    return std::all_of(tips.begin(), tips.end(),
                       [&](const GraphEdge& tip) { return reached.contains(tip.node); });
  };
  return are_reached(capture.left_tips) &&
         std::all_of(capture.streams.begin(), capture.streams.end(),
                     [&](const auto& stream) { return are_reached(stream->capture->tips); });
}

CUgraphNodeType node_type(const Operation& operation) {
  struct Visitor {
    CUgraphNodeType operator()(const EmptyOperation&) { return CU_GRAPH_NODE_TYPE_EMPTY; }
    CUgraphNodeType operator()(const KernelOperation&) { return CU_GRAPH_NODE_TYPE_KERNEL; }
    CUgraphNodeType operator()(const CopyOperation&) { return CU_GRAPH_NODE_TYPE_MEMCPY; }
    CUgraphNodeType operator()(const FillOperation&) { return CU_GRAPH_NODE_TYPE_MEMSET; }
    CUgraphNodeType operator()(const HostOperation&) { return CU_GRAPH_NODE_TYPE_HOST; }
    CUgraphNodeType operator()(const EventRecordOperation&) {
      return CU_GRAPH_NODE_TYPE_EVENT_RECORD;
    }
    CUgraphNodeType operator()(const EventWaitOperation&) { return CU_GRAPH_NODE_TYPE_WAIT_EVENT; }
    CUgraphNodeType operator()(const InterprocessWaitOperation&) {
      return CU_GRAPH_NODE_TYPE_WAIT_EVENT;
    }
    CUgraphNodeType operator()(const MemOpOperation&) { return CU_GRAPH_NODE_TYPE_BATCH_MEM_OP; }
    CUgraphNodeType operator()(const AllocateOperation&) { return CU_GRAPH_NODE_TYPE_MEM_ALLOC; }
    CUgraphNodeType operator()(const FreeOperation&) { return CU_GRAPH_NODE_TYPE_MEM_FREE; }
    CUgraphNodeType operator()(const ChildGraphOperation&) { return CU_GRAPH_NODE_TYPE_GRAPH; }
    CUgraphNodeType operator()(const ConditionalOperation&) {
      return CU_GRAPH_NODE_TYPE_CONDITIONAL;
    }
    CUgraphNodeType operator()(const GraphLaunchOperation&) { return CU_GRAPH_NODE_TYPE_GRAPH; }
  };
  return std::visit(Visitor{}, operation);
}

}  // namespace

CUresult begin_capture(Stream& stream, CUstreamCaptureMode mode, std::shared_ptr<Graph> into,
                       std::vector<GraphEdge> tips) {
  if (CUresult result = refuse_implicit(stream, /*invalidate=*/true)) return result;
  if (stream.kind() == Stream::Kind::kLegacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (mode != CU_STREAM_CAPTURE_MODE_GLOBAL && mode != CU_STREAM_CAPTURE_MODE_THREAD_LOCAL &&
      mode != CU_STREAM_CAPTURE_MODE_RELAXED) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::lock_guard lock(graph_mutex());
  if (stream.capture != nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  if (into != nullptr && into->capturing) return CUDA_ERROR_ILLEGAL_STATE;
  auto capture = std::make_shared<Capture>();
  capture->id = next_capture_id++;
  capture->mode = mode;
  capture->owner = std::this_thread::get_id();
  capture->origin = &stream;
  capture->own_graph = into == nullptr;
  capture->graph = into != nullptr ? std::move(into) : Graph::make();
  capture->graph->capturing = true;
  join(stream, capture, std::move(tips));
  active_captures().push_back(capture);
  active_count.fetch_add(1);
  return CUDA_SUCCESS;
}

CUresult end_capture(Stream& stream, std::shared_ptr<Graph>* graph) {
  *graph = nullptr;
  std::lock_guard lock(graph_mutex());
  if (stream.capture == nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  const std::shared_ptr<Capture> capture = stream.capture->capture;
  if (capture->origin != &stream) {
    capture->invalidated = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
  }
  CUresult result = CUDA_SUCCESS;
  if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED &&
      capture->owner != std::this_thread::get_id()) {
    result = CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  } else if (capture->invalidated) {
    result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  } else if (!joined(*capture)) {
    result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
  }
  finish(capture);
  if (result == CUDA_SUCCESS) {
    *graph = capture->graph;
  } else if (capture->own_graph) {
    drop_graph(*capture->graph);
  }
  return result;
}

void end_capture_of(Stream& stream) {
  std::lock_guard lock(graph_mutex());
  if (stream.capture == nullptr) return;
  const std::shared_ptr<Capture> capture = stream.capture->capture;
  if (capture->origin == &stream) {
    finish(capture);
    if (capture->own_graph) drop_graph(*capture->graph);
    return;
  }
  // The stream's nodes stay in the graph. Before the capture ends, another stream must have joined
  // them, by waiting for an event that was recorded after them.
  for (const GraphEdge& tip : stream.capture->tips) add_tip(capture->left_tips, tip.node);
  leave(stream);
  std::erase_if(capture->streams, [&](const auto& other) { return other.get() == &stream; });
}

CUresult capture_operation(Stream& stream, Operation operation, GraphNode** node) {
  std::lock_guard lock(graph_mutex());
  if (stream.capture == nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  Capture& capture = *stream.capture->capture;
  if (capture.invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  const auto* host = std::get_if<HostOperation>(&operation);
  if (host != nullptr && host->callback != nullptr) {
    capture.invalidated = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  const auto* free = std::get_if<FreeOperation>(&operation);
  if (free != nullptr && capture.graph->frees(free->address)) return CUDA_ERROR_INVALID_VALUE;
  const CUgraphNodeType type = node_type(operation);
  GraphNode* added = capture.graph->add(type, std::move(operation),
                                        stream.context().shared_from_this(), stream.capture->tips);
  stream.capture->tips.assign(1, GraphEdge{added});
  if (node != nullptr) *node = added;
  return CUDA_SUCCESS;
}

void invalidate_capture_of(Stream& stream) {
  if (!stream.capturing()) return;
  std::lock_guard lock(graph_mutex());
  if (stream.capture != nullptr) stream.capture->capture->invalidated = true;
}

CUresult capture_event_record(Stream& stream, Event& event, bool* handled) {
  *handled = stream.capturing();
  if (!*handled) return CUDA_SUCCESS;
  std::lock_guard lock(graph_mutex());
  if (stream.capture == nullptr) {
    *handled = false;
    return CUDA_SUCCESS;
  }
  if (stream.capture->capture->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  event.captured = true;
  event.capture = stream.capture->capture;
  event.captured_nodes.clear();
  for (const GraphEdge& tip : stream.capture->tips) event.captured_nodes.push_back(tip.node);
  return CUDA_SUCCESS;
}

CUresult capture_event_wait(Stream& stream, Event& event, bool* handled) {
  *handled = false;
  if (active_count.load() == 0 && !event.captured.load()) return CUDA_SUCCESS;
  std::lock_guard lock(graph_mutex());
  if (stream.capture == nullptr && !event.captured.load()) return CUDA_SUCCESS;
  *handled = true;

  const std::shared_ptr<Capture> source = event.capture.lock();
  if (!event.captured.load()) {
    if (stream.capture->capture->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (event.record() == nullptr) return CUDA_SUCCESS;
    stream.capture->capture->invalidated = true;
    return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  }
  if (source == nullptr || source->streams.empty()) return CUDA_ERROR_INVALID_VALUE;
  if (stream.kind() == Stream::Kind::kLegacy) {
    source->invalidated = true;
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  }
  if (stream.capture != nullptr && stream.capture->capture != source) {
    source->invalidated = true;
    stream.capture->capture->invalidated = true;
    return CUDA_ERROR_STREAM_CAPTURE_MERGE;
  }
  if (source->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (stream.capture == nullptr) join(stream, source, {});
  for (GraphNode* node : event.captured_nodes) add_tip(stream.capture->tips, node);
  return CUDA_SUCCESS;
}

CUresult check_not_captured(Event& event, bool invalidate) {
  if (!event.captured.load()) return CUDA_SUCCESS;
  std::lock_guard lock(graph_mutex());
  if (!event.captured.load()) return CUDA_SUCCESS;
  const std::shared_ptr<Capture> capture = event.capture.lock();
  if (capture == nullptr || capture->streams.empty()) return CUDA_ERROR_INVALID_VALUE;
  if (invalidate) capture->invalidated = true;
  return CUDA_ERROR_CAPTURED_EVENT;
}

CUresult refuse_on_capturing(Stream& stream) {
  if (!stream.capturing()) return CUDA_SUCCESS;
  std::lock_guard lock(graph_mutex());
  if (stream.capture == nullptr) return CUDA_SUCCESS;
  stream.capture->capture->invalidated = true;
  return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult refuse_implicit(Stream& stream, bool invalidate) {
  if (stream.kind() != Stream::Kind::kLegacy || active_count.load() == 0) return CUDA_SUCCESS;
  Context& context = stream.context();
  if (streams_of(context).blocking_captures.load() == 0) return CUDA_SUCCESS;
  std::lock_guard lock(graph_mutex());
  CUresult result = CUDA_SUCCESS;
  for (const auto& capture : active_captures()) {
    for (const auto& other : capture->streams) {
      if (&other->context() != &context || other->kind() == Stream::Kind::kNonBlocking) continue;
      if (invalidate) capture->invalidated = true;
      result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
  }
  return result;
}

CUresult refuse_context_wait(Context& context) {
  if (active_count.load() == 0) return CUDA_SUCCESS;
  std::lock_guard lock(graph_mutex());
  CUresult result = CUDA_SUCCESS;
  for (const auto& capture : active_captures()) {
    for (const auto& stream : capture->streams) {
      if (&stream->context() != &context) continue;
      capture->invalidated = true;
      result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
  }
  return result;
}

CUresult check_unsafe_call() {
  if (active_count.load() == 0 || thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED) {
    return CUDA_SUCCESS;
  }
  std::lock_guard lock(graph_mutex());
  CUresult result = CUDA_SUCCESS;
  for (const auto& capture : active_captures()) {
    const bool own = capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED &&
                     capture->owner == std::this_thread::get_id();
    const bool everybody = capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
                           thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    if (!own && !everybody) continue;
    capture->invalidated = true;
    result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return result;
}

CUstreamCaptureMode exchange_capture_mode(CUstreamCaptureMode mode) {
  return std::exchange(thread_mode, mode);
}

}  // namespace softgpu::driver
