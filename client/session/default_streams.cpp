#include "client/session/default_streams.h"

#include <vector>

#include "client/session/marshal.h"
#include "client/session/process.h"
#include "common/base/thread_object.h"
#include "generated/client/forward.h"

namespace rcuda::client {
namespace {

class ThreadStreams {
 public:
  ~ThreadStreams() {
    // The thread ends; its work goes on, as with cudaStreamDestroy.
    forget_gone();
    for (const Known& known : streams_) {
      (void)forward_cuStreamDestroy_v2(reinterpret_cast<CUstream>(known.stream));
    }
  }

  CUresult find(Object* context, Object** stream) {
    for (const Known& known : streams_) {
      if (known.context == context && known.is_there()) {
        *stream = known.stream;
        return CUDA_SUCCESS;
      }
    }
    forget_gone();
    CUstream created = nullptr;
    if (CUresult result = forward_cuStreamCreate(&created, CU_STREAM_DEFAULT);
        result != CUDA_SUCCESS) {
      return result;
    }
    *stream = find_object(created, wire::Kind::kStream);
    streams_.push_back({context, *stream, (*stream)->serial.load(std::memory_order_relaxed)});
    return CUDA_SUCCESS;
  }

 private:
  struct Known {
    Object* context;
    Object* stream;
    uint64_t serial;  // of the stream, which goes with its context: its slot is then another's

    bool is_there() const {
      return stream->kind.load(std::memory_order_acquire) == wire::Kind::kStream &&
             stream->serial.load(std::memory_order_relaxed) == serial;
    }
  };

  void forget_gone() {
    std::erase_if(streams_, [](const Known& known) { return !known.is_there(); });
  }

  std::vector<Known> streams_;
};

}  // namespace

CUresult per_thread_stream(Object* context, Object** stream) {
  return of_this_thread<ThreadStreams>().find(context, stream);
}

}  // namespace rcuda::client
