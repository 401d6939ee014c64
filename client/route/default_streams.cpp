#include "client/route/default_streams.h"

#include <vector>

#include "client/objects/arena.h"
#include "client/objects/stream.h"
#include "client/process/process.h"
#include "client/route/capture.h"
#include "client/session/timeline.h"
#include "common/base/thread_object.h"
#include "common/cuda/return_if_error.h"
#include "generated/client/forward.h"

namespace rcuda::client {
namespace {

class ThreadStreams {
 public:
  ~ThreadStreams() {
    // The thread ends. Work in its streams continues, as after cudaStreamDestroy.
    for (const Known& known : streams_) {
      if (Stream* stream = known.stream.get()) {
        if (!any_capture()) stream->timeline->mark_end();
        (void)forward_cuStreamDestroy_v2(reinterpret_cast<CUstream>(stream));
      }
    }
  }

  CUresult find(Context& context, Stream** stream) {
    for (const Known& known : streams_) {
      if (known.context == &context && (*stream = known.stream.get())) return CUDA_SUCCESS;
    }
    std::erase_if(streams_, [](const Known& known) { return !known.stream.get(); });
    CUstream created = nullptr;
    RCUDA_RETURN_IF_CUDA_ERROR(forward_cuStreamCreate(&created, CU_STREAM_DEFAULT));
    *stream = client::find<Stream>(created);
    (*stream)->timeline->set_with_legacy(Timeline::WithLegacy::kYes);
    streams_.push_back({&context, Ref(*stream)});
    return CUDA_SUCCESS;
  }

 private:
  struct Known {
    const Context* context;  // the stream ends before another context gets this address
    Ref<Stream> stream;
  };

  std::vector<Known> streams_;
};

}  // namespace

CUresult per_thread_stream(Context& context, Stream** stream) {
  return of_this_thread<ThreadStreams>().find(context, stream);
}

}  // namespace rcuda::client
