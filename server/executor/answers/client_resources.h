// ClientResources: objects that the client keeps for this worker's graphs. The client numbers them.
//
// In the worker, a ClientResource represents such an object. Everything that uses the object shares
// the ownership of the ClientResource. When the last owner releases it, on any thread, the worker
// sends an event, and the client drops the object (EventSink::released()).
// Threads: make() on the executor thread; resources are destroyed on any thread. Blocking: the
// destructor of a resource blocks while the event ring is full. Resources may outlive the session,
// because the driver may keep them. After the session's end no event is sent.
#pragma once

#include <cstdint>
#include <memory>

#include "common/base/mutex.h"
#include "server/executor/answers/event_sink.h"

namespace rcuda::server {

// One object of the client: a host function, a stand-in for pageable memory
// (client/copy/stand_in.h), or a user object.
class ClientResource {
 public:
  // Where resources report their end. Shared, because resources may outlive the session.
  struct Sink {
    Mutex mutex;
    EventSink* events RCUDA_GUARDED_BY(mutex) = nullptr;  // null after the session's end
  };

  ClientResource(std::shared_ptr<Sink> sink, uint64_t id) : sink_(std::move(sink)), id_(id) {}
  ~ClientResource() {
    MutexLock lock(sink_->mutex);
    if (sink_->events) (void)sink_->events->released(id_);
  }
  ClientResource(const ClientResource&) = delete;
  ClientResource& operator=(const ClientResource&) = delete;
  uint64_t id() const { return id_; }

 private:
  const std::shared_ptr<Sink> sink_;
  const uint64_t id_;
};

class ClientResources {
 public:
  explicit ClientResources(EventSink& events) { sink_->events = &events; }
  ~ClientResources() {
    MutexLock lock(sink_->mutex);
    sink_->events = nullptr;
  }
  ClientResources(const ClientResources&) = delete;
  ClientResources& operator=(const ClientResources&) = delete;

  std::shared_ptr<ClientResource> make(uint64_t id) {
    return std::make_shared<ClientResource>(sink_, id);
  }

 private:
  const std::shared_ptr<ClientResource::Sink> sink_ = std::make_shared<ClientResource::Sink>();
};

}  // namespace rcuda::server
