#include "common/wire/forms.h"

#include "common/wire/form_hashes.h"

namespace rcuda::wire {

uint64_t form_of(MessageType type) {
  switch (type) {
    case MessageType::kStatus:
      return kStatusForm;
    case MessageType::kGpuReport:
      return kGpuReportForm;
    case MessageType::kLeaseRequest:
    case MessageType::kLeaseAnswer:
      return kLeaseForm;
    case MessageType::kControlRequest:
    case MessageType::kControlAnswer:
      return kControlForm;
    default:
      return 0;
  }
}

}  // namespace rcuda::wire
