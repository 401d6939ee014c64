#include "client/nccl/not_forwarded.h"

#include "common/base/first_report.h"
#include "common/base/log.h"
#include "common/nccl/nccl_api.h"

namespace rcuda::client::nccl {

int not_forwarded(const char* name) {
  if (first_report(name)) {
    RCUDA_ERROR("rcuda does not support %s: the call returns ncclInvalidUsage (docs/nccl.md)",
                name);
  }
  return rcuda::nccl::kInvalidUsage;
}

}  // namespace rcuda::client::nccl
