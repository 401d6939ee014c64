// This function has its own file, because a test of different builds replaces it.
#include "common/messages/forms.h"

#include "common/messages/control_messages.h"
#include "common/messages/gpu_report.h"
#include "common/messages/lease_messages.h"
#include "common/messages/server_status.h"

namespace rcuda::wire {

uint64_t form_of(MessageType type) {
  switch (type) {
    case MessageType::kStatus:
      return layout_hash<ServerStatus>();
    case MessageType::kGpuReport:
      return layout_hash<GpuReport>();
    case MessageType::kLeaseRequest:
    case MessageType::kLeaseAnswer:
      return layout_hash<LeaseRequest, LeaseAnswer>();
    case MessageType::kControlRequest:
    case MessageType::kControlAnswer:
      return layout_hash<ControlRequest, ControlAnswer>();
    default:
      return 0;
  }
}

}  // namespace rcuda::wire
