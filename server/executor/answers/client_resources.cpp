#include "server/executor/answers/client_resources.h"

namespace rcuda::server {

ClientResource::~ClientResource() {
  MutexLock lock(sink_->mutex);
  if (sink_->events) (void)sink_->events->released(id_);
}

ClientResources::~ClientResources() {
  MutexLock lock(sink_->mutex);
  sink_->events = nullptr;
}

}  // namespace rcuda::server
