// AdapterEvents: what an adapter reports of itself, delivered to the Links that use it.
//
// rdma_cm opens each device once per process, so all Links over it share one queue of asynchronous
// events. Each Link's progress thread sleeps on its descriptor; whichever takes an event delivers
// it to every Link that it concerns. A port that goes down ends no Link, because queue pairs
// outlive a short interruption: it is said in the log, once per process, and is the reason if they
// fail.
//
// Listeners are called by the thread that calls take(), with a lock held that attach() and the end
// of an Attachment wait for: they note what they are told, and call nothing here.
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
    // From here on `note` hears of the device, and of queue pairs whose qp_context is `owner` and
    // completion queues whose cq_context is.
    void begin(ibv_context* context, const void* owner, Loss::Note note);
    void end();

   private:
    friend class AdapterEvents;
    ibv_context* context_ = nullptr;
    const void* owner_ = nullptr;
    Loss::Note note_;
  };

  // Takes and delivers what there is; never blocks.
  static void take(ibv_context* context);
};

}  // namespace rcuda::transport::verbs
