// AdapterEvents delivers an adapter's asynchronous events to the Links that use the adapter.
//
// rdma_cm opens each device once per process, so all Links over it share one queue of asynchronous
// events. Each Link's progress thread sleeps on the descriptor of this queue. The thread that reads
// an event delivers it to every affected Link. A port that goes down does not end a Link, because
// queue pairs survive a short interruption: the event is only logged, once in the process. If the
// queue pairs fail while the port is down, the port is the reason (loss.h).
//
// take() calls the function `note` of each affected Attachment. It holds a lock meanwhile that
// Attachment::begin() and end() also take. So `note` must only record the event, and call no
// function of AdapterEvents.
#pragma once

#include <functional>
#include <string>

#include "common/transport/verbs/handles.h"
#include "common/transport/verbs/loss.h"

namespace rcuda::transport::verbs {

class AdapterEvents {
 public:
  class Attachment {
   public:
    Attachment() = default;
    Attachment(const Attachment&) = delete;
    ~Attachment() { end(); }
    // From now on `note` receives events of the device, of queue pairs whose qp_context is `owner`,
    // and of completion queues whose cq_context is `owner`.
    void begin(ibv_context* context, const void* owner, Loss::Note note);
    // After the return, `note` does not run any more.
    void end();

   private:
    friend class AdapterEvents;
    ibv_context* context_ = nullptr;
    const void* owner_ = nullptr;
    Loss::Note note_;
  };

  // Takes and delivers all pending events. Never blocks.
  static void take(ibv_context* context);
};

}  // namespace rcuda::transport::verbs
