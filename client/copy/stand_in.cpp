#include "client/copy/stand_in.h"

#include <cstring>
#include <map>
#include <memory>

#include "client/hostmem/host_memory.h"
#include "common/base/mutex.h"
#include "common/base/peer_order.h"
#include "common/cuda/return_if_error.h"

namespace rcuda::client {
namespace {

Mutex originals_mutex;
std::map<uint64_t, uint64_t>& originals() RCUDA_REQUIRES(originals_mutex) {
  static auto* instance = new std::map<uint64_t, uint64_t>;
  return *instance;
}

// The memory of a stand-in. Owned by the callback's function.
class Memory {
 public:
  Memory(const HostRows& rows, bool is_source) : rows_(rows), is_source_(is_source) {}
  ~Memory() {
    if (!memory_.session) return;
    {
      MutexLock lock(originals_mutex);
      originals().erase(address());
    }
    free_internal(memory_);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  CUresult allocate(Session& session, wire::ObjectId context, uint64_t callback) {
    const size_t span = (rows_.slices - 1) * rows_.slice_bytes +
                        (rows_.rows - 1) * rows_.pitch_bytes + rows_.width_bytes;
    RCUDA_RETURN_IF_CUDA_ERROR(allocate_internal(session, context, span, callback, &memory_));
    before_peer(this);  // for ThreadSanitizer: move() runs after the worker got this memory
    MutexLock lock(originals_mutex);
    originals()[address()] = rows_.first;
    return CUDA_SUCCESS;
  }

  uint64_t address() const { return reinterpret_cast<uintptr_t>(memory_.address); }

  void move() const {
    after_peer(this);
    const uint64_t from = is_source_ ? rows_.first : address();
    const uint64_t to = is_source_ ? address() : rows_.first;
    for (size_t slice = 0; slice < rows_.slices; ++slice) {
      for (size_t row = 0; row < rows_.rows; ++row) {
        const uint64_t offset = slice * rows_.slice_bytes + row * rows_.pitch_bytes;
        std::memcpy(reinterpret_cast<void*>(to + offset),
                    reinterpret_cast<const void*>(from + offset), rows_.width_bytes);
      }
    }
  }

 private:
  const HostRows rows_;
  const bool is_source_;
  InternalHostMemory memory_;
};

}  // namespace

CUresult make_stand_in(Session& session, wire::ObjectId context, const HostRows& rows,
                       bool is_source, StandIn* made) {
  auto memory = std::make_shared<Memory>(rows, is_source);
  WorkerEvents::GraphCallback callback;
  callback.function = [memory] { memory->move(); };
  callback.is_internal = true;
  const Result<uint64_t> id = session.events().add_graph_callback(std::move(callback));
  if (!id) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = memory->allocate(session, context, *id);
  if (result != CUDA_SUCCESS) {
    session.events().remove_callback(*id);
    return result;
  }
  *made = {memory->address(), *id};
  return CUDA_SUCCESS;
}

uint64_t original_of(uint64_t first) {
  MutexLock lock(originals_mutex);
  const auto found = originals().find(first);
  return found == originals().end() ? 0 : found->second;
}

}  // namespace rcuda::client
