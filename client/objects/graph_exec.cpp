#include "client/objects/graph_exec.h"

#include <atomic>
#include <unordered_map>

#include "common/base/mutex.h"

namespace rcuda::client {
namespace {

// Executables whose handle in the application is the handle of the worker's driver. The key is this
// handle. Never destroyed, like the arenas.
struct WorkerHandles {
  std::atomic<size_t> count{0};  // the size of `graphs`; if it is 0, find() takes no lock
  SharedMutex mutex;
  std::unordered_map<const void*, GraphExec*> graphs RCUDA_GUARDED_BY(mutex);
};

WorkerHandles& worker_handles() {
  static auto* instance = new WorkerHandles;
  return *instance;
}

}  // namespace

GraphExec::~GraphExec() {
  if (!worker_handle_) return;
  WorkerHandles& handles = worker_handles();
  WriterLock lock(handles.mutex);
  handles.graphs.erase(worker_handle_);
  handles.count = handles.graphs.size();
}

CUgraphExec GraphExec::handle() const {
  return worker_handle_ ? worker_handle_
                        : reinterpret_cast<CUgraphExec>(const_cast<GraphExec*>(this));
}

bool GraphExec::use_worker_handle(CUgraphExec handle) {
  if (!handle || Arena<GraphExec>::get().is_own_address(handle)) return false;
  WorkerHandles& handles = worker_handles();
  WriterLock lock(handles.mutex);
  if (!handles.graphs.emplace(handle, this).second) return false;
  handles.count = handles.graphs.size();
  worker_handle_ = handle;
  return true;
}

template <>
GraphExec* find<GraphExec>(const void* handle) {
  if (GraphExec* found = Arena<GraphExec>::get().find(handle)) return found;
  WorkerHandles& handles = worker_handles();
  if (handles.count == 0) return nullptr;
  ReaderLock lock(handles.mutex);
  const auto found = handles.graphs.find(handle);
  return found == handles.graphs.end() ? nullptr : found->second;
}

}  // namespace rcuda::client
