#include "softgpu/driver/event.h"

#include <utility>

#include "softgpu/driver/context.h"
#include "softgpu/driver/handle_table.h"

namespace softgpu::driver {

Event::Event(std::shared_ptr<Context> context, unsigned flags)
    : context_(std::move(context)), flags_(flags) {}

Event::~Event() = default;

std::shared_ptr<EventRecord> Event::record() const {
  std::lock_guard lock(mutex_);
  return record_;
}

void Event::set_record(std::shared_ptr<EventRecord> record) {
  std::lock_guard lock(mutex_);
  record_ = std::move(record);
}

std::shared_ptr<Event> event_from_handle(CUevent handle) {
  return handle_table<Event>().find(handle);
}

void drop_events(Context& context) {
  handle_table<Event>().remove_if([&](Event& event) { return &event.context() == &context; });
}

}  // namespace softgpu::driver
