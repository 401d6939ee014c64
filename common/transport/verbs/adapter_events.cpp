#include "common/transport/verbs/adapter_events.h"

#include <algorithm>
#include <vector>

#include <fcntl.h>

#include "common/base/log.h"
#include "common/base/mutex.h"
#include "common/base/units.h"
#include "common/transport/verbs/connection.h"
#include "common/transport/verbs/errors.h"

namespace rcuda::transport::verbs {
namespace {

struct Registry {
  Mutex mutex;
  std::vector<AdapterEvents::Attachment*> attachments RCUDA_GUARDED_BY(mutex);
};

// Never destroyed: Links may outlive the static destructors.
Registry& registry() {
  static Registry* instance = new Registry;
  return *instance;
}

const void* attachment_owner(const ibv_async_event& event) {
  switch (event.event_type) {
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
      return event.element.qp->qp_context;
    case IBV_EVENT_CQ_ERR:
      return event.element.cq->cq_context;
    default:
      return nullptr;
  }
}

void report_port(ibv_context* context, const ibv_async_event& event) {
  const auto port = static_cast<uint8_t>(event.element.port_num);
  const char* device = ibv_get_device_name(context->device);
  if (event.event_type == IBV_EVENT_PORT_ACTIVE) {
    RCUDA_INFO("verbs: port %d of %s is up", port, device);
    return;
  }
  // The event may be old: ignore it if the port is up now.
  const std::string problem = port_problem(context, port);
  if (problem.empty()) return;
  RCUDA_WARN("verbs: %s; sessions over this port end if it stays down for about %s",
             problem.c_str(), time_text(kGivesUpAfter).c_str());
}

}  // namespace

void AdapterEvents::Attachment::begin(ibv_context* context, const void* owner, Loss::Note note) {
  const MutexLock lock(registry().mutex);
  ::fcntl(context->async_fd, F_SETFL, ::fcntl(context->async_fd, F_GETFL) | O_NONBLOCK);
  context_ = context;
  owner_ = owner;
  note_ = std::move(note);
  registry().attachments.push_back(this);
}

void AdapterEvents::Attachment::end() {
  const MutexLock lock(registry().mutex);
  std::erase(registry().attachments, this);
}

void AdapterEvents::take(ibv_context* context) {
  const MutexLock lock(registry().mutex);
  ibv_async_event event;
  while (ibv_get_async_event(context, &event) == 0) {
    const char* what = ibv_event_type_str(event.event_type);
    switch (event.event_type) {
      case IBV_EVENT_DEVICE_FATAL:
        for (const Attachment* attachment : registry().attachments) {
          if (attachment->context_ != context) continue;
          attachment->note_(Loss::Sign::kDevice, device_gone(context));
        }
        break;
      case IBV_EVENT_QP_FATAL:
      case IBV_EVENT_QP_REQ_ERR:
      case IBV_EVENT_QP_ACCESS_ERR:
      case IBV_EVENT_CQ_ERR:
        for (const Attachment* attachment : registry().attachments) {
          if (attachment->owner_ != attachment_owner(event)) continue;
          attachment->note_(Loss::Sign::kQueuePair,
                            std::string("the adapter stopped the session's queues (") + what +
                                "): see 'dmesg' and 'rdma res show qp'");
        }
        break;
      case IBV_EVENT_PORT_ERR:
      case IBV_EVENT_PORT_ACTIVE:
        report_port(context, event);
        break;
      default:
        break;
    }
    ibv_ack_async_event(&event);
  }
}

}  // namespace rcuda::transport::verbs
