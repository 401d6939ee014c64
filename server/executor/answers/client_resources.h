// ClientResources: things that the client keeps for this worker's graphs, by the client's numbers.
//
// Whoever needs such a thing owns a share of its ClientResource. When the last owner is gone, on
// whatever thread, the client is told.
// Threads: make() on the executor thread; resources end on any thread. Blocking: the end of a
// resource, while the event ring is full. Resources may outlive the session: the driver holds on to
// them. Nobody is told of those.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>

#include "server/executor/answers/event_sink.h"

namespace rcuda::server {

// A host function, memory that stands for pageable memory, or a user object.
class ClientResource {
 public:
  // Where the ends of resources are told.
  struct Sink {
    std::mutex mutex;
    EventSink* events = nullptr;  // null once the session is over
  };

  ClientResource(std::shared_ptr<Sink> sink, uint64_t id) : sink_(std::move(sink)), id_(id) {}
  ~ClientResource();
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
  ~ClientResources();
  ClientResources(const ClientResources&) = delete;
  ClientResources& operator=(const ClientResources&) = delete;

  std::shared_ptr<ClientResource> make(uint64_t id) {
    return std::make_shared<ClientResource>(sink_, id);
  }

 private:
  const std::shared_ptr<ClientResource::Sink> sink_ = std::make_shared<ClientResource::Sink>();
};

}  // namespace rcuda::server
