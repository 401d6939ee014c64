#include "client/session/default_streams.h"

#include <utility>
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
    for (const auto& [context, stream] : streams_) {
      (void)forward_cuStreamDestroy_v2(reinterpret_cast<CUstream>(stream));
    }
  }

  CUresult find(Object* context, Object** stream) {
    for (const auto& [known, existing] : streams_) {
      // A retired slot may have been reused by another context or stream.
      if (known == context && existing->context == context->id &&
          existing->kind.load(std::memory_order_acquire) == wire::Kind::kStream) {
        *stream = existing;
        return CUDA_SUCCESS;
      }
    }
    CUstream created = nullptr;
    if (CUresult result = forward_cuStreamCreate(&created, CU_STREAM_DEFAULT);
        result != CUDA_SUCCESS) {
      return result;
    }
    *stream = find_object(created, wire::Kind::kStream);
    streams_.emplace_back(context, *stream);
    return CUDA_SUCCESS;
  }

 private:
  std::vector<std::pair<Object*, Object*>> streams_;
};

}  // namespace

CUresult per_thread_stream(Object* context, Object** stream) {
  return of_this_thread<ThreadStreams>().find(context, stream);
}

}  // namespace rcuda::client
